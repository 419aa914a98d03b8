"""Commits decided work through the sinks, and repairs lost work."""
