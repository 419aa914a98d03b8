"""User functions in a task: how they are called, and the handling of records that they fail for."""
