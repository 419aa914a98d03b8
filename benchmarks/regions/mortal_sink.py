"""A Kafka sink whose tasks can be told to die, or to be slow, region by region.

The one who measures asks for a region's death by a file; the next writer of that region takes it,
goes as far as it was told, and ends its own process by SIGKILL. So a death hits a process at work
for this region, at a known place, and never an idle one that another region would be lent.

A continuous region has one process for as long as it lives, which notes who it is: so that one can
be killed from outside as well (`Doom.strike`), wherever it happens to be.
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
from sluice.runtime.model.model import SplitRange, StateEntry

__all__ = ["ANY_TIME", "MOMENTS", "Death", "Doom", "MortalSink"]

BEFORE_WRITE = "before-write"  # its records are read, nothing is written
WRITTEN = "written"  # some are on their way, the transaction may hold any part of them
PRE_COMMITTED = "pre-committed"  # all are on the broker, and nobody was told: open, and in the way
MOMENTS = (BEFORE_WRITE, WRITTEN, PRE_COMMITTED)
ANY_TIME = "any-time"  # from outside, by the clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A task whose process was ended.

    Attributes:
        region, moment: as asked.
        attempt_id: of the region's life.
        at_s: wall clock.
        lived_s: since the task had opened its sink for the epoch; of one that was killed from
            outside, since its process had begun.
        ranges: partition, start and end offset of what a chained task was reading, where it is
            known: a continuous task learns its epoch's end with the epoch.
    """

    region: str
    moment: str
    attempt_id: int
    at_s: float
    lived_s: float
    ranges: Sequence[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Doom:
    """Where deaths are asked for and noted: a directory that all processes of a machine see."""

    directory: Path

    def ask(self, region: str, moment: str) -> None:
        """Let the region's next task that writes die."""
        _publish(self._asked(region), moment)

    def is_asked(self, region: str) -> bool:
        """Whether nobody has taken it yet."""
        return self._asked(region).exists()

    def take(self, region: str) -> str | None:
        """The moment at which the caller has to die, if any; given to one task alone."""
        taken = self.directory / f"taken-{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            self._asked(region).rename(taken)
            return taken.read_text("utf-8")
        return None

    def die(self, death: Death) -> None:
        """Note it, and end this process."""
        self._note(death)
        os.kill(os.getpid(), signal.SIGKILL)

    def live(self, region: str, attempt_id: int) -> None:
        """Note that this process is the one of a continuous region's life."""
        began_s = psutil.Process().create_time()
        attempt = json.dumps({"pid": os.getpid(), "began_s": began_s, "attempt_id": attempt_id})
        path = self._attempt(region)
        if not path.exists() or path.read_text("utf-8") != attempt:
            _publish(path, attempt)

    def strike(self, region: str) -> bool:
        """``kill -9`` of the region's process, whatever it is doing; False: none lives now."""
        try:
            attempt = json.loads(self._attempt(region).read_text("utf-8"))
            process = psutil.Process(attempt["pid"])
            if process.create_time() != attempt["began_s"]:  # its number is somebody else's by now
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
        """All so far, in order."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.directory / "deaths").read_text("utf-8").splitlines()
            return [Death(**json.loads(line)) for line in lines]
        return []

    def _note(self, death: Death) -> None:
        line = json.dumps(asdict(death)).encode() + b"\n"
        with (self.directory / "deaths").open("ab", buffering=0) as file:
            file.write(line)

    def _asked(self, region: str) -> Path:
        return self.directory / f"asked-{region}"

    def _attempt(self, region: str) -> Path:
        return self.directory / f"life-{region}"


def _publish(path: Path, text: str) -> None:
    """Whole, or not at all."""
    draft = path.with_name(f"{path.name}.draft")
    draft.parent.mkdir(parents=True, exist_ok=True)
    draft.write_text(text, "utf-8")
    draft.replace(path)


class _MortalWriter:
    """A task's writer; dies at the moment it was told, which is some time in its first epoch."""

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
    """A task's writer that takes its time: a region on a slow machine."""

    def __init__(self, writer: ContinuousWriter, records_per_s: float) -> None:
        self._writer = writer
        self._records_per_s = records_per_s
        self.decide_by_s: float | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        time.sleep(batch.num_rows / self._records_per_s)  # costs no processor
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
            self.doom.live(scope.batch.region, scope.batch.attempt_id)
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
        doom: where deaths are asked for; None: nobody dies.
        records_per_s: at most so many in a task, by region; the others as fast as they can.
        sink: see `KafkaSink`.
    """

    def __init__(
        self,
        *,
        doom: Doom | None = None,
        records_per_s: Mapping[str, float] | None = None,
        **sink: Any,  # noqa: ANN401 - what KafkaSink takes
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
