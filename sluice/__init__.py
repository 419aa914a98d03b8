"""Sluice: exactly-once Kafka connectors for Spark.

``sluice.install(spark)`` adds the formats ``sluice-kafka``, ``sluice-files`` and
``sluice-iceberg`` to a session; `Job` runs sources, functions and sinks under one checkpoint
coordinator.
Names are imported on first use: Spark's Python workers import this package too, and need few.
"""

import importlib
from typing import TYPE_CHECKING

from sluice.runtime.extras import extras_named
from sluice.runtime.process.interpreter import use_this_interpreter

if TYPE_CHECKING:
    from sluice.connectors.hdfs.hdfs_sink import HdfsSink
    from sluice.connectors.hdfs.partition_commit.settings import (
        PartitionCommit,
        PartitionMark,
        Webhook,
    )
    from sluice.connectors.hdfs.rolling.roll_plan import Roll
    from sluice.connectors.iceberg.iceberg_sink import IcebergSink
    from sluice.connectors.installation import Installation, install
    from sluice.connectors.kafka.client.connection import KafkaConnection
    from sluice.connectors.kafka.client.credentials import OAuthToken
    from sluice.connectors.kafka.client.properties_file import client_properties
    from sluice.connectors.kafka.kafka_progress import KafkaProgress, kafka_progress
    from sluice.connectors.kafka.kafka_sink import KafkaSink
    from sluice.connectors.kafka.kafka_source import KafkaSource
    from sluice.connectors.kafka.records.serde.avro_records import AvroDeserializer, Framing
    from sluice.connectors.kafka.records.serde.deserializing import Deserializer
    from sluice.connectors.kafka.records.serde.json_records import JsonDeserializer
    from sluice.connectors.kafka.records.serde.record_json import JsonSerializer
    from sluice.runtime.coordinator.core.events import Progress
    from sluice.runtime.coordinator.policy.balance import LoadBalancer
    from sluice.runtime.coordinator.policy.handlers import (
        Alignment,
        CheckpointHandler,
        GlobalCheckpointHandler,
        HandlerDecision,
        RegionalCheckpointHandler,
    )
    from sluice.runtime.coordinator.policy.state_tables import State
    from sluice.runtime.errors import (
        AuthenticationError,
        CheckpointFailedError,
        ConfigError,
        CoordinatorLostError,
        DamagedCheckpointError,
        DataLostError,
        DeliveryError,
        DropLimitError,
        FencedError,
        FunctionFailedError,
        LateRecordsError,
        MissingRequirementError,
        PoisonRecordsError,
        RegionGivenUpError,
        RegionsSuspendedError,
        SourceChangedError,
        StorageError,
        StreamError,
        TransactionAbortedError,
        TransactionLostError,
        TransactionUnknownError,
        UnreachableError,
        UnsupportedFormatError,
        WrongJobError,
    )
    from sluice.runtime.failover.restart_strategies import (
        ExponentialDelayRestart,
        FailureRateRestart,
        FixedDelayRestart,
    )
    from sluice.runtime.functions.function_context import FunctionContext
    from sluice.runtime.functions.operator_state import OperatorState
    from sluice.runtime.job.job import Job
    from sluice.runtime.job.job_handle import JobHandle, RunStatus
    from sluice.runtime.job.stream import KeyedStream, Stream, WindowedStream
    from sluice.runtime.keyed.declarations import (
        ApproxDistinct,
        Avg,
        Collect,
        Count,
        First,
        Last,
        ListState,
        MapState,
        Max,
        Min,
        Session,
        Sliding,
        Sum,
        Tumbling,
        ValueState,
    )
    from sluice.runtime.keyed.operators.process import Timers
    from sluice.runtime.model.event_time import (
        BoundedOutOfOrderness,
        EventTime,
        Header,
        Monotonic,
        Punctuated,
    )
    from sluice.runtime.model.on_error import DeadLetters, Skip
    from sluice.runtime.model.rate_limit import PidRateLimit
    from sluice.runtime.service.listening.service_tls import ServiceTls
    from sluice.runtime.spark.fast_start.fast_start_settings import fast_start

_MODULES = {
    "sluice.connectors.hdfs.hdfs_sink": ("HdfsSink",),
    "sluice.connectors.iceberg.iceberg_sink": ("IcebergSink",),
    "sluice.connectors.hdfs.partition_commit.settings": (
        "PartitionCommit",
        "PartitionMark",
        "Webhook",
    ),
    "sluice.connectors.hdfs.rolling.roll_plan": ("Roll",),
    "sluice.connectors.installation": ("Installation", "install"),
    "sluice.connectors.kafka.client.connection": ("KafkaConnection",),
    "sluice.connectors.kafka.client.credentials": ("OAuthToken",),
    "sluice.connectors.kafka.client.properties_file": ("client_properties",),
    "sluice.connectors.kafka.kafka_progress": ("KafkaProgress", "kafka_progress"),
    "sluice.connectors.kafka.kafka_sink": ("KafkaSink",),
    "sluice.connectors.kafka.kafka_source": ("KafkaSource",),
    "sluice.connectors.kafka.records.serde.avro_records": ("AvroDeserializer", "Framing"),
    "sluice.connectors.kafka.records.serde.deserializing": ("Deserializer",),
    "sluice.connectors.kafka.records.serde.json_records": ("JsonDeserializer",),
    "sluice.connectors.kafka.records.serde.record_json": ("JsonSerializer",),
    "sluice.runtime.coordinator.policy.state_tables": ("State",),
    "sluice.runtime.coordinator.core.events": ("Progress",),
    "sluice.runtime.coordinator.policy.balance": ("LoadBalancer",),
    "sluice.runtime.coordinator.policy.handlers": (
        "Alignment",
        "CheckpointHandler",
        "GlobalCheckpointHandler",
        "RegionalCheckpointHandler",
        "HandlerDecision",
    ),
    "sluice.runtime.errors": (
        "AuthenticationError",
        "CheckpointFailedError",
        "ConfigError",
        "CoordinatorLostError",
        "DamagedCheckpointError",
        "DataLostError",
        "DeliveryError",
        "DropLimitError",
        "FencedError",
        "FunctionFailedError",
        "LateRecordsError",
        "MissingRequirementError",
        "PoisonRecordsError",
        "RegionGivenUpError",
        "RegionsSuspendedError",
        "SourceChangedError",
        "StorageError",
        "StreamError",
        "TransactionAbortedError",
        "TransactionLostError",
        "TransactionUnknownError",
        "UnreachableError",
        "UnsupportedFormatError",
        "WrongJobError",
    ),
    "sluice.runtime.failover.restart_strategies": (
        "ExponentialDelayRestart",
        "FailureRateRestart",
        "FixedDelayRestart",
    ),
    "sluice.runtime.functions.function_context": ("FunctionContext",),
    "sluice.runtime.functions.operator_state": ("OperatorState",),
    "sluice.runtime.job.job": ("Job",),
    "sluice.runtime.job.job_handle": ("JobHandle", "RunStatus"),
    "sluice.runtime.job.stream": ("KeyedStream", "Stream", "WindowedStream"),
    "sluice.runtime.service.listening.service_tls": ("ServiceTls",),
    "sluice.runtime.keyed.declarations": (
        "ApproxDistinct",
        "Avg",
        "Collect",
        "Count",
        "First",
        "Last",
        "ListState",
        "MapState",
        "Max",
        "Min",
        "Session",
        "Sliding",
        "Sum",
        "Tumbling",
        "ValueState",
    ),
    "sluice.runtime.keyed.operators.process": ("Timers",),
    "sluice.runtime.model.event_time": (
        "BoundedOutOfOrderness",
        "EventTime",
        "Header",
        "Monotonic",
        "Punctuated",
    ),
    "sluice.runtime.model.on_error": ("DeadLetters", "Skip"),
    "sluice.runtime.model.rate_limit": ("PidRateLimit",),
    "sluice.runtime.spark.fast_start.fast_start_settings": ("fast_start",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Alignment",
    "ApproxDistinct",
    "AuthenticationError",
    "Avg",
    "AvroDeserializer",
    "BoundedOutOfOrderness",
    "CheckpointFailedError",
    "CheckpointHandler",
    "Collect",
    "ConfigError",
    "CoordinatorLostError",
    "Count",
    "DamagedCheckpointError",
    "DataLostError",
    "DeadLetters",
    "DeliveryError",
    "Deserializer",
    "DropLimitError",
    "EventTime",
    "ExponentialDelayRestart",
    "FailureRateRestart",
    "FencedError",
    "First",
    "FixedDelayRestart",
    "Framing",
    "FunctionContext",
    "FunctionFailedError",
    "GlobalCheckpointHandler",
    "HandlerDecision",
    "HdfsSink",
    "Header",
    "IcebergSink",
    "Installation",
    "Job",
    "JobHandle",
    "JsonDeserializer",
    "JsonSerializer",
    "KafkaConnection",
    "KafkaProgress",
    "KafkaSink",
    "KafkaSource",
    "KeyedStream",
    "Last",
    "LateRecordsError",
    "ListState",
    "LoadBalancer",
    "MapState",
    "Max",
    "Min",
    "MissingRequirementError",
    "Monotonic",
    "OAuthToken",
    "OperatorState",
    "PartitionCommit",
    "PartitionMark",
    "PidRateLimit",
    "PoisonRecordsError",
    "Progress",
    "Punctuated",
    "RegionGivenUpError",
    "RegionalCheckpointHandler",
    "RegionsSuspendedError",
    "Roll",
    "RunStatus",
    "ServiceTls",
    "Session",
    "Skip",
    "Sliding",
    "SourceChangedError",
    "State",
    "StorageError",
    "Stream",
    "StreamError",
    "Sum",
    "Timers",
    "TransactionAbortedError",
    "TransactionLostError",
    "TransactionUnknownError",
    "Tumbling",
    "UnreachableError",
    "UnsupportedFormatError",
    "ValueState",
    "Webhook",
    "WindowedStream",
    "WrongJobError",
    "client_properties",
    "fast_start",
    "install",
    "kafka_progress",
]

use_this_interpreter()


def __getattr__(name: str) -> object:
    """Import the module of a public name when the name is first used."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'sluice' has no attribute {name!r}")
    with extras_named():
        value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
