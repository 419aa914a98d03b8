"""Commands about Kafka: servers, transactions, verification, the demo."""
