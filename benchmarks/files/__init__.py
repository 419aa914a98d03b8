"""Sinks of files: copies, restarts after many files, and files that are open over epochs."""
