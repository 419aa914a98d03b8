"""Keyed functions: keys and key groups, aggregates, windows, joins, timers and processes."""
