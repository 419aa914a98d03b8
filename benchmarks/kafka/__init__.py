"""One process without Spark: reading, writing and committing through the Kafka clients."""
