"""Keyed state that lives from batch to batch: versioned, partitioned by key, on disk.

``operators`` is the driver's side: which version of each partition is committed. ``partition_state`` is the
side of a task: one batch's work on one partition. It reads from ``local_store``, a cache on the executor's
disk, and writes ``partition_files``, the durable files in the checkpoint directory.
"""
