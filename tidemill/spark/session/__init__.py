"""The Spark session and its context.

::

    session               making a session that is fast for small batches
    settings              the settings of Spark that Tidemill reads or sets
    patches               attaching: PySpark's classes ask whether a session is attached
    shipping              Tidemill's own code on workers that do not have it
    executors             which executors there are, and which one a task runs on
    executor_info         an executor, as a value
    job_properties        job groups and local properties of the current thread
    memory_table          a table in the driver's JVM that grows while others query it
    python_data_sources   Python data sources that a program has registered with Spark
"""
