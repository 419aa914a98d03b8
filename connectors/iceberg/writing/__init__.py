"""Rows of a task as data files of a table."""
