"""Kafka records as Arrow columns, and the choice of their partition."""
