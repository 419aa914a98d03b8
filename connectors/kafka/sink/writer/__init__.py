"""Writes the records of one task into a transaction and pre-commits it."""
