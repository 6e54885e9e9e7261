"""Outputs of structured queries, one file each: tasks stage, the driver commits once per batch id."""
