"""What is on disk: storage with atomic files, who owns it, the batch log, the written-down program."""
