"""A Kafka sink whose tasks die on request, or are slow, region by region.

A test or benchmark requests a region's death by a file. The next writer of that region takes the
request, works up to the requested moment, and ends its own process by SIGKILL. So a death hits a
process that works for this region, at a known moment, and never an idle process.

A continuous region has one process for each attempt, which writes its id to a file. So a caller
can also kill it at any time (`Doom.strike`).
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from sluice import KafkaSink
from sluice.connectors.kafka.sink.writer.kafka_writer import KafkaWriterFactory
from sluice.runtime.contracts import AttemptRegistry, ContinuousWriter, TaskScope
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import SplitRange

__all__ = ["ANY_TIME", "MOMENTS", "Death", "Doom", "MortalSink"]

BEFORE_WRITE = "before-write"  # after reading, before writing
WRITTEN = "written"  # the transaction may have any part of the records
PRE_COMMITTED = "pre-committed"  # flushed, open, and not reported
MOMENTS = (BEFORE_WRITE, WRITTEN, PRE_COMMITTED)
ANY_TIME = "any-time"  # killed by the caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A task whose process was killed.

    Attributes:
        region, moment: as requested.
        attempt_id: of the region.
        at_s: wall clock.
        lived_s: since the task opened its sink for the epoch; if the caller killed it, since its
            process started.
        ranges: partition, start and end offset of the ranges of a chained task, if known: a
            continuous task learns the end of its epoch with the epoch.
    """

    region: str
    moment: str
    attempt_id: int
    at_s: float
    lived_s: float
    ranges: Sequence[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Doom:
    """The directory of requested and noted deaths; all processes of a machine share it."""

    directory: Path

    def request(self, region: str, moment: str) -> None:
        """Let the region's next task that writes die."""
        _publish(self._request_file(region), moment)

    def is_requested(self, region: str) -> bool:
        """Whether no task has taken the request yet."""
        return self._request_file(region).exists()

    def take(self, region: str) -> str | None:
        """The moment at which the caller must die, if any; only one task gets it."""
        taken = self.directory / f"taken-{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            self._request_file(region).rename(taken)
            return taken.read_text("utf-8")
        return None

    def die(self, death: Death) -> None:
        """Write the death to its file, and kill this process."""
        self._note(death)
        os.kill(os.getpid(), signal.SIGKILL)

    def register(self, region: str, attempt_id: int) -> None:
        """Write the id of this process, which runs an attempt of a continuous region."""
        began_s = psutil.Process().create_time()
        attempt = json.dumps({"pid": os.getpid(), "began_s": began_s, "attempt_id": attempt_id})
        path = self._attempt(region)
        if not path.exists() or path.read_text("utf-8") != attempt:
            _publish(path, attempt)

    def strike(self, region: str) -> bool:
        """``kill -9`` of the region's process at any moment; False: none is alive."""
        try:
            attempt = json.loads(self._attempt(region).read_text("utf-8"))
            process = psutil.Process(attempt["pid"])
            if process.create_time() != attempt["began_s"]:  # another process has its id by now
                return False
            now_s = time.time()
            process.kill()
        except (FileNotFoundError, psutil.NoSuchProcess):
            return False
        self._note(
            Death(
                region=region,
                moment=ANY_TIME,
                attempt_id=attempt["attempt_id"],
                at_s=now_s,
                lived_s=now_s - attempt["began_s"],
                ranges=(),
            )
        )
        return True

    def deaths(self) -> list[Death]:
        """All deaths so far, in order."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.directory / "deaths").read_text("utf-8").splitlines()
            return [Death(**json.loads(line)) for line in lines]
        return []

    def _note(self, death: Death) -> None:
        line = json.dumps(asdict(death)).encode() + b"\n"
        with (self.directory / "deaths").open("ab", buffering=0) as file:
            file.write(line)

    def _request_file(self, region: str) -> Path:
        return self.directory / f"requested-{region}"

    def _attempt(self, region: str) -> Path:
        return self.directory / f"attempt-{region}"


def _publish(path: Path, text: str) -> None:
    """Write a file as a whole, or not at all."""
    draft = path.with_name(f"{path.name}.draft")
    draft.parent.mkdir(parents=True, exist_ok=True)
    draft.write_text(text, "utf-8")
    draft.replace(path)


class _MortalWriter:
    """A task's writer that dies at the requested moment of its first epoch."""

    def __init__(self, writer: ContinuousWriter, scope: TaskScope, doom: Doom, moment: str) -> None:
        self._writer = writer
        self._scope = scope
        self._ranges: Sequence[SplitRange] = scope.source_ranges
        self._doom = doom
        self._moment = moment
        self._opened_s = time.monotonic()
        self.decide_by_s: float | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        self._die_at(BEFORE_WRITE)
        self._writer.write(batch)
        self._die_at(WRITTEN)

    def end_epoch(self, ranges: Sequence[SplitRange], *, checkpoint_id: int) -> None:
        self._ranges = ranges
        self._writer.end_epoch(ranges, checkpoint_id=checkpoint_id)

    def pre_commit(self) -> list[StateEntry]:
        found = self._writer.pre_commit()
        self._die_at(PRE_COMMITTED)
        self.decide_by_s = self._writer.decide_by_s
        return found

    def commit(self, *, timeout_s: float) -> bool:
        return self._writer.commit(timeout_s=timeout_s)

    def release(self) -> None:
        self._writer.release()

    def abort(self) -> None:
        self._writer.abort()

    def _die_at(self, moment: str) -> None:
        if moment != self._moment:
            return
        self._doom.die(
            Death(
                region=self._scope.batch.region,
                moment=moment,
                attempt_id=self._scope.batch.attempt_id,
                at_s=time.time(),
                lived_s=time.monotonic() - self._opened_s,
                ranges=[
                    (split.partition, split.start_offset, split.end_offset)
                    for split in self._ranges
                ],
            )
        )


class _SlowWriter:
    """A slow writer, as of a region on a slow machine."""

    def __init__(self, writer: ContinuousWriter, records_per_s: float) -> None:
        self._writer = writer
        self._records_per_s = records_per_s
        self.decide_by_s: float | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        time.sleep(batch.num_rows / self._records_per_s)  # costs no processor time
        self._writer.write(batch)

    def end_epoch(self, ranges: Sequence[SplitRange], *, checkpoint_id: int) -> None:
        self._writer.end_epoch(ranges, checkpoint_id=checkpoint_id)

    def pre_commit(self) -> list[StateEntry]:
        found = self._writer.pre_commit()
        self.decide_by_s = self._writer.decide_by_s
        return found

    def commit(self, *, timeout_s: float) -> bool:
        return self._writer.commit(timeout_s=timeout_s)

    def release(self) -> None:
        self._writer.release()

    def abort(self) -> None:
        self._writer.abort()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Factory:
    """Picklable; a `sluice.runtime.contracts.ContinuousWriterFactory`."""

    factory: KafkaWriterFactory
    doom: Doom | None
    records_per_s: Mapping[str, float]

    @property
    def longest_interval_s(self) -> float | None:
        return self.factory.longest_interval_s

    def open(self, scope: TaskScope, registry: AttemptRegistry) -> ContinuousWriter:
        return self._fated(self.factory.open(scope, registry), scope)

    def open_continuous(self, scope: TaskScope, registry: AttemptRegistry) -> ContinuousWriter:
        if self.doom is not None:
            self.doom.register(scope.batch.region, scope.batch.attempt_id)
        return self._fated(self.factory.open_continuous(scope, registry), scope)

    def _fated(self, writer: ContinuousWriter, scope: TaskScope) -> ContinuousWriter:
        region = scope.batch.region
        if region in self.records_per_s:
            writer = _SlowWriter(writer, self.records_per_s[region])
        moment = None if self.doom is None else self.doom.take(region)
        if self.doom is None or moment is None:
            return writer
        return _MortalWriter(writer, scope, self.doom, moment)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fates:
    doom: Doom | None = None
    records_per_s: Mapping[str, float] = field(default_factory=dict)


class MortalSink(KafkaSink):
    """A `KafkaSink` with tasks that die or are slow.

    Args:
        doom: directory of requests; None: no task dies.
        records_per_s: the most of one task, by region; other regions have no limit.
        sink: see `KafkaSink`.
    """

    def __init__(
        self,
        *,
        doom: Doom | None = None,
        records_per_s: Mapping[str, float] | None = None,
        **sink: Any,  # noqa: ANN401 - arguments of KafkaSink
    ) -> None:
        super().__init__(**sink)
        self._fates = _Fates(doom=doom, records_per_s=records_per_s or {})

    def writer_factory(self) -> Any:  # noqa: ANN401 - of another class than KafkaSink's
        """See `sluice.runtime.contracts.TaskSink`."""
        return _Factory(
            factory=super().writer_factory(),
            doom=self._fates.doom,
            records_per_s=self._fates.records_per_s,
        )
