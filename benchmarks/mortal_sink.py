"""A Kafka sink whose tasks can be told to die, or to be slow, region by region.

The one who measures asks for a region's death by a file; the next task of that region that writes
takes it, goes as far as it was told, and ends its own process by SIGKILL. So a death hits a process
at work for this region, at a known place, and never an idle one that another region would be lent.
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

import pyarrow as pa

from connectors.kafka import KafkaSink
from runtime.contracts import AttemptRegistry, SinkWriter, TaskScope, WriterFactory
from runtime.model import StateEntry

__all__ = ["MOMENTS", "Death", "Doom", "MortalSink"]

BEFORE_WRITE = "before-write"  # its records are read, nothing is written
WRITTEN = "written"  # some are on their way, the transaction may hold any part of them
PRE_COMMITTED = "pre-committed"  # all are on the broker, and nobody was told: open, and in the way
MOMENTS = (BEFORE_WRITE, WRITTEN, PRE_COMMITTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A task that has ended its process.

    Attributes:
        region, moment: as asked.
        generation: of the region's life.
        at_s: wall clock.
        lived_s: since the task had opened its sink.
        ranges: partition, start and end offset of what a chained task was reading.
    """

    region: str
    moment: str
    generation: int
    at_s: float
    lived_s: float
    ranges: Sequence[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Doom:
    """Where deaths are asked for and noted: a directory that all processes of a machine see."""

    directory: Path

    def ask(self, region: str, moment: str) -> None:
        """Let the region's next task that writes die."""
        asked = self._asked(region)
        draft = asked.with_suffix(".draft")
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(moment, "utf-8")
        draft.replace(asked)

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
        line = json.dumps(asdict(death)).encode() + b"\n"
        with (self.directory / "deaths").open("ab", buffering=0) as file:
            file.write(line)
        os.kill(os.getpid(), signal.SIGKILL)

    def deaths(self) -> list[Death]:
        """All so far, in order."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.directory / "deaths").read_text("utf-8").splitlines()
            return [Death(**json.loads(line)) for line in lines]
        return []

    def _asked(self, region: str) -> Path:
        return self.directory / f"asked-{region}"


class _MortalWriter:
    """A task's writer; dies at the moment it was told, which is some time in its first epoch."""

    def __init__(self, writer: SinkWriter, scope: TaskScope, doom: Doom, moment: str) -> None:
        self._writer = writer
        self._scope = scope
        self._doom = doom
        self._moment = moment
        self._opened_s = time.monotonic()

    def write(self, batch: pa.RecordBatch) -> None:
        self._die_at(BEFORE_WRITE)
        self._writer.write(batch)
        self._die_at(WRITTEN)

    def pre_commit(self) -> list[StateEntry]:
        found = self._writer.pre_commit()
        self._die_at(PRE_COMMITTED)
        return found

    def abort(self) -> None:
        self._writer.abort()

    def _die_at(self, moment: str) -> None:
        if moment != self._moment:
            return
        self._doom.die(
            Death(
                region=self._scope.batch.region,
                moment=moment,
                generation=self._scope.batch.generation,
                at_s=time.time(),
                lived_s=time.monotonic() - self._opened_s,
                ranges=[
                    (split.partition, split.start_offset, split.end_offset)
                    for split in self._scope.source_ranges
                ],
            )
        )


class _SlowWriter:
    """A task's writer that takes its time: a region on a slow machine."""

    def __init__(self, writer: SinkWriter, records_per_s: float) -> None:
        self._writer = writer
        self._records_per_s = records_per_s

    def write(self, batch: pa.RecordBatch) -> None:
        time.sleep(batch.num_rows / self._records_per_s)  # costs no processor
        self._writer.write(batch)

    def pre_commit(self) -> list[StateEntry]:
        return self._writer.pre_commit()

    def abort(self) -> None:
        self._writer.abort()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Factory:
    """Picklable."""

    factory: WriterFactory
    doom: Doom | None
    records_per_s: Mapping[str, float]

    def open(self, scope: TaskScope, registry: AttemptRegistry) -> SinkWriter:
        writer = self.factory.open(scope, registry)
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
        """See `runtime.contracts.TaskSink`."""
        return _Factory(
            factory=super().writer_factory(),
            doom=self._fates.doom,
            records_per_s=self._fates.records_per_s,
        )
