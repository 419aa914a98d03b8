"""Costs of regions and of the coordinator, and effects of a killed region on other regions."""
