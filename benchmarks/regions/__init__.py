"""Costs of regions and of the coordinator, and what a killed region costs the other regions."""
