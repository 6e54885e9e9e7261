"""From the DataFrame of a query to a physical plan that runs on every batch.

::

    placeholder            the streaming leaf that a DataFrame stands on until its query starts
    query_compiler         the steps of a compilation, from the DataFrame to the plan
    supported_operations     what is refused
    plan_rewriting           the logical and the physical plan, rewritten
    stream_leaves            leaves that read splits or files of a batch
    batch_time               current_timestamp() is the time of the batch
    batch_seeds              rand() has the seeds of the batch
    event_time               watermarks
    stateful/                operators that keep state
    compiled_plan          the plan, run again for every batch
    static_tables            which version of its tables a batch sees
    computing/               counting rows, keeping them, binding steps to one batch
    batch_output           the rows of one batch, for its sink
    batch_leaves           the query as a batch query: over a fixed part of the stream
    compared_columns         which columns of the two can be compared
    catalyst               reading and building Catalyst trees over py4j
"""
