"""Checkpoint slots: publishing, reading, retention, repairs and accepted losses."""
