"""Runs a query: its thread, triggers, sources, pipeline, watermark and checkpoint."""
