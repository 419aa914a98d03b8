"""User functions in a task: how they are called, and what happens to records they refuse."""
