"""Finds and deletes files of a checkpoint directory that no record names any more."""
