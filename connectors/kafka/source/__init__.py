"""Kafka source: options, splits and positions."""
