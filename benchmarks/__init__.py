"""Benchmarks of Tidemill side by side with Spark's own streaming: same programs, same Spark, same run.

``make bench`` runs all benchmarks; ``python -m benchmarks small_batch`` runs one.
"""
