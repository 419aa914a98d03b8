"""Iceberg sink: data files by tasks, one snapshot for each checkpoint."""
