"""RDDs as DStreams use them.

::

    combine        reducing and grouping by key, with fewer exchanges than PySpark
    record_chain   chains of record steps that a combine step runs in one loop
    rdd_checkpoint the files of an RDD that checkpoint() was called on
    located_rdd    an RDD whose partitions say where they want to run
"""
