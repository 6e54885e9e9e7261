"""The operators of a plan that keep state: where their steps go, and which keys they may have.

::

    aggregation           groupBy: a restore and a save step around Spark's merge
    deduplication         dropDuplicates, distinct: one step
    distinct_aggregates   count(DISTINCT x) by sets of values, which Spark can merge
    distinct_rows         SELECT DISTINCT: an aggregation, or a deduplication
    key_types             which columns can be keys
    state_layout          what the columns of an aggregation's state mean, for the checkpoint
    state_types           which columns can be kept in state, or pass a state step
    state_steps           making a state step, and finding it in a plan
    task_numbers          exchanges that keep a step's task number equal to its state partition
"""
