"""What is known about a running stream, for both front ends.

The UI, the metrics, the rate controllers and users' listeners learn about a stream from events alone::

                          DStreams          structured queries
    what a batch did      batch_info        query_progress
    the events            events            query_events
    their delivery        listener_bus      listener_bus

``batch_info`` has the objects that ``pyspark.streaming`` passes to its listeners; ``query_progress`` measures
triggers and makes PySpark's own ``StreamingQueryProgress``. An event of a query is an event like any other,
with PySpark's object inside, so that one bus serves both.
"""
