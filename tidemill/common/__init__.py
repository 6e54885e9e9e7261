"""Threads, time and settings: what every other folder stands on. Imports nothing above it."""
