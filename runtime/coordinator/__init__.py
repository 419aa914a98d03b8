"""The checkpoint coordinator."""
