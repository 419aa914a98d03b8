"""Threads and I/O of a running coordinator, around its pure core."""
