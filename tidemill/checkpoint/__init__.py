"""The checkpoint directory: storage with atomic files, its owner, the logs, the program of DStreams."""
