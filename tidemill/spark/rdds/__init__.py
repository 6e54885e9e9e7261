"""RDDs as DStreams use them: reducing by key, partitions with a place to run."""
