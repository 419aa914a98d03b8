"""Schemas of a registry: its client, the ids in records, and each format in both directions."""
