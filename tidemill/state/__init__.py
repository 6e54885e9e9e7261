"""Keyed state that lives from batch to batch: versioned, partitioned by key, on disk."""
