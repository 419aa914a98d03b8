"""State of one region, its pacing and its liveness."""
