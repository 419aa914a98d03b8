"""Iceberg tables for tests: a catalog in a file, and one that fails on request."""
