"""Savepoints and full checkpoints: directories that a job can be restored from without its own."""
