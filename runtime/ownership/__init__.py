"""The lease on what a job writes to: its record and its watch."""
