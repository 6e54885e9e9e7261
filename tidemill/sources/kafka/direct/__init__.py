"""The direct stream of DStreams: topics of Kafka as RDDs.

::

    source    which offsets a batch has, and its RDD
    limits    how much of each partition a batch takes
    group     the offsets of batches that are done, committed to a consumer group
    rdd       an RDD of ranges of offsets, and what its tasks do
"""
