"""Servers on this machine, for first steps and tests: Kafka, HDFS, YARN, and topics."""

from sluice.runtime.extras import extras_named

with extras_named():
    from sluice.connectors.kafka.client.topic_creation import NewTopic, create_topics
    from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
    from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs
    from sluice.runtime.embedded.yarn.embedded_yarn import EmbeddedYarn

__all__ = ["EmbeddedHdfs", "EmbeddedKafka", "EmbeddedYarn", "NewTopic", "create_topics"]
