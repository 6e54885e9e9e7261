"""Tidemill side by side with ``pyspark.streaming``: same programs, same Spark, same run.

``make bench`` runs all; ``python -m benchmarks small_batch`` runs one.
"""
