"""Fixtures of all tests; each kind of server has its own module."""

from hypothesis import settings

from tests.hdfs_fixture import hadoop_client, hdfs
from tests.kafka_fixture import kafka, kafka_by_level, leveled_kafka, secure_kafka, topic
from tests.spark_fixture import spark

__all__ = [
    "hadoop_client",
    "hdfs",
    "kafka",
    "kafka_by_level",
    "leveled_kafka",
    "secure_kafka",
    "spark",
    "topic",
]

# How long an example takes says how busy the machine is; pytest-timeout catches what hangs.
settings.register_profile("sluice", deadline=None, print_blob=True)
settings.load_profile("sluice")
