"""The graph of a DStream program: one node for each stream, and the RDDs that it makes for a batch."""
