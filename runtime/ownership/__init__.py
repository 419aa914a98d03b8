"""The lease on each output of a job: its record, and its renewal."""
