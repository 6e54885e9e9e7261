"""Threads, time, settings and processes: the ground that every other folder stands on.

It imports nothing above it.
"""
