"""Options of a connection to Kafka as users give them, and one that logs in with a password."""

from sluice.connectors.kafka.client.connection import KafkaConnection

SERVERS = {"kafka.bootstrap.servers": "a:9092,b:9092"}
CANARY = "canary-6f1e"
"""A password; where it is shown it is found."""
SCRAM = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="alice" password="{CANARY}";'
    ),
}


def connection_with(**options: str) -> KafkaConnection:
    """Of options without their prefix, spelt with underscores."""
    named = {f"kafka.{name.replace('_', '.')}": value for name, value in options.items()}
    return KafkaConnection.of({**SERVERS, **named})
