"""Accumulators of aggregates over Arrow columns, for many groups at once."""
