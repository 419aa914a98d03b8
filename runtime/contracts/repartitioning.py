"""Repartition topics: how a source's system carries rows by key from one region to another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import pyarrow as pa

from sluice.runtime.contracts.operators import Sink, Source
from sluice.runtime.model.checkpoint_record import RegionRecord

__all__ = [
    "PARTITION_COLUMN",
    "SIDE_COLUMN",
    "JobTopicSink",
    "JobTopicSource",
    "KeyEncoder",
    "Repartition",
    "RepartitioningSource",
    "TopicStart",
]

PARTITION_COLUMN = "__partition"
"""int32, the last column of a repartition topic's rows: the partition that they came from."""

SIDE_COLUMN = "__side"
"""int8, before `PARTITION_COLUMN`, if the topic has two sides: 0 left, 1 right. Columns that the
row's side does not have are null."""

KeyEncoder = Callable[[pa.RecordBatch], pa.LargeBinaryArray]
"""The encoded key of each row; picklable, deterministic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartition:
    """A repartition topic, as ``key_by`` describes it.

    Attributes:
        name: of the ``key_by`` operator; part of the names of sink and source.
        uid: the user's stable id for it, if given.
        partitions: of the topic; None: chosen when it is created.
        regions: that read it, as far as the user has set that.
        keys: one encoder for each side: one, or two for a join.
    """

    name: str
    uid: str | None
    partitions: int | None
    regions: int
    keys: tuple[KeyEncoder, ...]


@runtime_checkable
class RepartitioningSource(Source, Protocol):
    """A source whose system can hold a job's repartition topics."""

    def repartition(self, topic: Repartition) -> "tuple[tuple[JobTopicSink, ...], JobTopicSource]":
        """A sink for each side, in order, and the source that reads them all.

        The sinks are exactly-once; the source yields committed rows, with `PARTITION_COLUMN` last.
        """
        ...


@runtime_checkable
class JobTopicSink(Sink, Protocol):
    """A sink that writes a topic of the job."""

    def of_job(self, job_name: str, job_uid: str, source_id: str) -> Self:
        """The same sink for this job; ``source_id``: of the source that reads the topic."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStart:
    """What the start of a run knows of a job's topic.

    Attributes:
        source_id: of the source that reads it.
        writers: the regions that write it, as restored.
        readers: the regions that read it, as restored.
        settings: of the record that the run resumes from.
    """

    source_id: str
    writers: Sequence[RegionRecord]
    readers: Sequence[RegionRecord]
    settings: Mapping[str, str]


@runtime_checkable
class JobTopicSource(Source, Protocol):
    """A source that reads a topic of the job."""

    def of_job(self, job_name: str, job_uid: str, source_id: str) -> Self:
        """The same source for this job."""
        ...

    def prepare_topic(self, start: TopicStart, *, timeout_s: float) -> None:
        """Create the topic if this is its first start, and check it. Driver; after the fencing
        record, before any region runs. May be repeated.

        Raises:
            SourceChangedError: the topic of an earlier run is gone, or has other partitions.
            ConfigError: settings of the topic are unsafe.
        """
        ...
