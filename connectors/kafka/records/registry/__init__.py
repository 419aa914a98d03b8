"""Schemas of a registry: its client, the ids in records, and Avro in both directions."""
