"""An embedded Kafka broker for first steps and tests."""
