"""What is on disk: storage with atomic files, who owns it, the logs, the written-down program."""
