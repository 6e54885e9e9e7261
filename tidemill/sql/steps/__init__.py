"""What tasks of a structured query run in Python: reading splits, and working on state.

Each step is a function for ``mapInArrow``, pickled once when the query is compiled. What is different in each
batch it learns from local properties of the Spark job: see :mod:`tidemill.sql.steps.batch_context`.
"""
