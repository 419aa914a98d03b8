"""Connectors: each package implements the contracts of `contracts` for one system."""
