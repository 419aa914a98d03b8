"""Producers of a task: prepared ahead, one transaction each, never used again."""
