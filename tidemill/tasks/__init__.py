"""What runs inside Python workers, on executors. Nothing here touches the JVM or imports ``tidemill.spark``.

In a structured query, as ``mapInArrow`` functions that the compiler puts into the plan::

    batch_context      which batch a task works for, on its way from the driver in local properties
    fetch_step         FetchStep, ReadSplits: rows of a source's splits
    state_step         StateStep: what all steps with state share
    aggregate_steps    AggregateRestoreStep, AggregateSaveStep: around Spark's merge of buffers
    deduplicate_step   DeduplicateStep: dropDuplicates, distinct, dropDuplicatesWithinWatermark
    state_layout       KeptFunction, StateLayout: what the rows of an aggregation's state consist of
    event_time         the event times of rows: which rows are late, how long state stays

In a DStream, as ``mapPartitionsWithIndex`` functions::

    file_records       TextLines, BinaryRecords, ArrowLines: records of files
    record_steps       MapRecords, FilterRecords, CountValues, ...: record by record
    combine_step       CombineLocally: reducing by key within a partition
    fused_loop         one generated loop for a chain of record steps and the combine step after it

In both::

    arrow_types        which types can travel between Spark and a step
    worker             the Python worker process: garbage collector, memory
"""
