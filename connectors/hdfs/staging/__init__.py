"""Staged files: their names, their committables and the tasks' output before the decision."""
