"""Streams of files: finding the new files of a directory, and remembering those that were taken."""
