"""Operators on keyed streams: aggregates, windows, joins, deduplication and processes."""
