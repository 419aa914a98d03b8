"""Executor side of the source: reads ranges and streams of records."""
