"""The kit for your own tests: kill a pipeline, restart it, and check every record of its output.

The pytest plugin of this package adds the fixtures ``sluice_kafka``, ``sluice_topic``,
``sluice_hdfs`` and ``sluice_spark``. Their types are `KafkaServer`, `TopicFactory`,
`sluice.local.EmbeddedHdfs` and Spark's ``SparkSession``.
"""

from sluice.runtime.extras import extras_named

with extras_named():
    from sluice.connectors.kafka.tools.demo.observer import Observer
    from sluice.connectors.kafka.tools.verify.topic_history import read_records
    from sluice.connectors.testing.assertions import assert_exactly_once
    from sluice.connectors.testing.ending import run_until_end
    from sluice.connectors.testing.kafka_server import KafkaServer
    from sluice.connectors.testing.killing import (
        STEPS,
        KillReport,
        ProgramRun,
        UnexpectedEndError,
        kill_and_restart,
    )
    from sluice.connectors.testing.topics import Topic, TopicFactory
    from sluice.connectors.testing.verdict import Fault, NotExactlyOnceError, Verdict
    from sluice.runtime.checker import Payload, Record, SpilledPrefix

__all__ = [
    "STEPS",
    "Fault",
    "KafkaServer",
    "KillReport",
    "NotExactlyOnceError",
    "Observer",
    "Payload",
    "ProgramRun",
    "Record",
    "SpilledPrefix",
    "Topic",
    "TopicFactory",
    "UnexpectedEndError",
    "Verdict",
    "assert_exactly_once",
    "kill_and_restart",
    "read_records",
    "run_until_end",
]
