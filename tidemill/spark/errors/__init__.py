"""Errors of Spark's, as a user wants to read them and a program to catch them.

::

    failures              the user's traceback, out of an error of Spark's
    user_frames           which frames of a traceback are the user's
    reading_advice        what to do about a file that cannot be read
    context_lines         PySpark's own lines about an error, where Tidemill tells of it
    conditions            Spark's name for an error, and the error that Spark itself would raise
    data_source_errors    errors of Python data sources, with Spark's conditions and the user's frames
"""
