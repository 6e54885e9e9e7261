"""Is the stream equal to the batch, and what is in the stream now."""
