"""Files as Spark and Hadoop see them: formats, writers, file systems."""
