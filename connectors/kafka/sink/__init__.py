"""Transactional Kafka sink: writer, producers, committer."""
