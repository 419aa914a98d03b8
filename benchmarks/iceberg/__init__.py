"""How fast the Iceberg sink writes and commits."""
