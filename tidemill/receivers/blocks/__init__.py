"""On executors and on the driver: the format and the files of blocks, and reading them in another process."""
