"""Kafka source and transactional Kafka sink, for Jobs and for drop-in queries."""
