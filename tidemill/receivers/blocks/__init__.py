"""Blocks: their format, their files, and how they are read from another process."""
