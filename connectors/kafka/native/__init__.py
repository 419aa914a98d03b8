"""Records between Kafka and Arrow by librdkafka's C interface, without a Python object each."""
