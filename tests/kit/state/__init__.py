"""Keyed state for tests: a store in a directory, and tasks that keep state there."""
