"""Repartition topics: how a source's system carries rows by key from one region to another."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self, runtime_checkable

import pyarrow as pa

from sluice.runtime.contracts.keyed import DecodedRows
from sluice.runtime.contracts.operators import Sink, Source, SplitEnumerator
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.event_time import EventTime
from sluice.runtime.model.splits import SplitKey, SplitRange
from sluice.runtime.model.state.batch_lineage import BatchLineage
from sluice.runtime.model.state.key_groups import default_max_parallelism
from sluice.runtime.model.state.keyed_state import KeyedState

__all__ = [
    "SIDE_COLUMN",
    "JobTopic",
    "JobTopicEnumerator",
    "JobTopicSink",
    "JobTopicSource",
    "KeyEncoder",
    "Repartition",
    "RepartitioningSource",
    "TopicCopy",
    "TopicStart",
]

SIDE_COLUMN = "__side"
"""int8, the last column of the rows of a topic with two sides: 0 left, 1 right."""

KeyEncoder = Callable[[pa.RecordBatch], tuple[pa.LargeBinaryArray, pa.Schema]]
"""The encoded key of each row, and the schema of the keys (`sluice.runtime.keyed.row_keys`);
picklable, deterministic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartition:
    """A repartition topic, as ``key_by`` describes it.

    Attributes:
        name: of the ``key_by`` operator; part of the names of sink and source.
        uid: the user's stable id for it, if given.
        partitions: of the topic; None: chosen when it is created.
        regions: that read it, as far as the user has set that.
        keys: one encoder for each side: one, or two for a join.
        event_time: of the upstream source; None: its rows have none.
    """

    name: str
    uid: str | None
    partitions: int | None
    regions: int
    keys: tuple[KeyEncoder, ...]
    event_time: EventTime | None = None


@runtime_checkable
class RepartitioningSource(Source, Protocol):
    """A source whose system can hold a job's repartition topics."""

    def repartition(self, topic: Repartition) -> "tuple[tuple[JobTopicSink, ...], JobTopicSource]":
        """A sink for each side, in order, and the source that reads them all.

        The sinks are exactly-once; the source yields committed messages, which its
        `JobTopicSource.decoder` decodes.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTopic:
    """A topic of the job, as its regions need it in one run.

    Attributes:
        partitions: of the topic.
        max_parallelism: number of key groups.
        lineage: which messages the run reads.
    """

    partitions: int
    max_parallelism: int
    lineage: BatchLineage = field(default_factory=BatchLineage)


@runtime_checkable
class JobTopicEnumerator(SplitEnumerator, Protocol):
    """The driver's side of a source that reads a topic of the job."""

    def log_ends(
        self, positions: Sequence[SplitRange], *, timeout_s: float
    ) -> Mapping[SplitKey, int]:
        """The present ends of these splits' logs, rows of open transactions included.

        Raises:
            UnreachableError: one is not known.
        """
        ...


@runtime_checkable
class JobTopicSink(Sink, Protocol):
    """A sink that writes a topic of the job."""

    @property
    def source_id(self) -> str:
        """Operator id of the source that reads the topic."""
        ...

    def of_job(self, job_name: str, job_uid: str, source_id: str) -> Self:
        """The same sink for this job."""
        ...

    def on_topic(self, topic: JobTopic) -> Self:
        """The same sink for this run."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCopy:
    """Rows in flight in a topic of another job, for the begin of a restored one.

    Attributes:
        topic, topic_id: of the other job.
        offsets: of each partition: what that job had read.
        lineage: which messages after that are copied.
    """

    topic: str
    topic_id: str
    offsets: Mapping[int, int]
    lineage: BatchLineage


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStart:
    """The facts about a topic of the job at the start of a run.

    Attributes:
        readers: the regions that read it, as restored.
        is_first: nothing is decided: no run can have used the topic.
        copy: rows that the topic begins with; None: there are none.
    """

    readers: Sequence[RegionRecord]
    is_first: bool
    copy: TopicCopy | None = None

    @property
    def partitions(self) -> int:
        """Number of the topic's partitions: a region reads each of them."""
        return sum(len(region.splits) for region in self.readers)

    @property
    def max_parallelism(self) -> int:
        """Number of key groups, as recorded with the state of the topic's splits, else as it
        follows from the partitions.

        Raises:
            DamagedCheckpointError: two readers have other numbers.
        """
        states = (region.keyed_state for region in self.readers)
        recorded = KeyedState.key_groups_of(state for state in states if state is not None)
        return recorded or default_max_parallelism(self.partitions)


@runtime_checkable
class JobTopicSource(Source, Protocol):
    """A source that reads a topic of the job. It ends when the topic's writers have."""

    @property
    def topic(self) -> str:
        """Name of the topic; "" before `of_job`."""
        ...

    def of_job(self, job_name: str, job_uid: str, source_id: str) -> Self:
        """The same source for this job."""
        ...

    def on_topic(self, topic: JobTopic) -> Self:
        """The same source for this run."""
        ...

    @property
    def max_parallelism(self) -> int:
        """Number of key groups; 0 before `on_topic`."""
        ...

    def decoder(self) -> Callable[[pa.RecordBatch], Iterator[DecodedRows]]:
        """Makes rows of its batches. Picklable; executor side."""
        ...

    def prepare_topic(self, start: TopicStart, *, timeout_s: float) -> None:
        """Create the topic if no run has used it, copy into it what it begins with, and check it.

        Driver; after the fencing record, before any region runs. May be repeated.

        Raises:
            SourceChangedError: the topic of an earlier run is gone, or has other partitions.
            ConfigError: settings of the topic are unsafe.
            DataLostError: rows to be copied are gone.
        """
        ...
