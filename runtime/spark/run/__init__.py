"""Starts a job's regions on Spark and restarts those that fail."""
