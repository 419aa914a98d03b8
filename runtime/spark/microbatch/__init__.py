"""The micro-batch engine: one Structured Streaming query per region."""
