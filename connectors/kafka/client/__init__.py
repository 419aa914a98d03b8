"""Connections to a Kafka cluster: options, security, and the only imports of Kafka libraries."""
