"""Spark from the inside: the only folder that touches py4j or Catalyst.

::

    session/    the session and its context: settings, executors, jobs, failures, code on the workers
    compiler/   from the DataFrame of a query to a physical plan that runs on every batch
    rdds/       RDDs as DStreams use them: reducing by key, partitions with a place to run
    files/      Hadoop's file systems, and Spark's readers and writers of files
    java_names  Java's classes by their names, without asking the JVM for each part

Other folders use PySpark's public API, and call functions of this folder for everything else: a new version
of Spark can break this folder only, and ``tests/spark/compiler/test_catalyst.py`` says where. Code for the
Python workers is in :mod:`tidemill.tasks`; this folder puts it into plans and RDDs.
"""
