"""Repartition topics: rows by key, written by some regions of a job and read by others."""
