"""Starts a run: recovery, fencing, settlement and rescaling, before its first barrier."""
