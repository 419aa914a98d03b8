"""``sluice serve``: one service for all jobs of a registry, and its commands."""
