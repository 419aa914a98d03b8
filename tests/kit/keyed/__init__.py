"""Keyed state that is obviously right: tables as dicts, and each operation row by row."""
