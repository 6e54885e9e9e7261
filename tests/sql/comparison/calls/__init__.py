"""Calls of every public method of ``pyspark.sql.streaming``, right and wrong, for both engines."""
