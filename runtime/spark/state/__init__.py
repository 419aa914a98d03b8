"""Reads and rewrites Spark's state of a savepoint, for commands, in a Spark of their own."""
