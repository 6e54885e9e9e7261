"""A running query: its thread, triggers, sources, pipeline and watermark."""
