"""Faster starts of Spark: class archives and prepared Python processes."""
