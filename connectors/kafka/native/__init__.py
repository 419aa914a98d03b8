"""Records between Kafka and Arrow without a Python object each: clients of our own, by librdkafka's
public C interface, in the library that confluent-kafka brings. Why and how: docs/hot-path.md."""
