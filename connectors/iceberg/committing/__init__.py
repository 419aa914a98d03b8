"""Appends decided data files to the table, and deletes files that no decision names."""
