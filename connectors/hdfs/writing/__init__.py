"""Writes rows into staged files, in a Python task or through Spark's writers."""
