"""Writes a lost transaction again: ``on_lost="repair"`` for chained regions
(`two-phase-repair`)."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from sluice.runtime.checkpoint.lost_work import LostCommittables
from sluice.runtime.contracts import (
    AttemptRegistry,
    DeadLetterWriter,
    RegisteredAttempt,
    Sink,
    SinkCoordinator,
    SinkWriter,
    TaskScope,
)
from sluice.runtime.coordinator.committing.repairs import Repairer, discard
from sluice.runtime.errors import TransactionLostError
from sluice.runtime.functions.function_run import FunctionRun, WriteDeadLetter
from sluice.runtime.graph.job_graph import Region
from sluice.runtime.model.checkpoint_record import RegionRecord, StateEntry
from sluice.runtime.model.splits import BatchKey, SplitRange

__all__ = ["ChainRepairer", "ranges_to_replay"]

log = logging.getLogger(__name__)


class _Unregistered(AttemptRegistry):
    """The coordinator's own process writes repairs, so it registers them nowhere.

    If a repair dies before it is on record, its attempt is over, and the sweep aborts its
    transaction.
    """

    def register(self, attempt: RegisteredAttempt) -> float:
        log.info("repairing: batch=%s resource=%s", attempt.batch, attempt.resource)
        return time.monotonic()


def ranges_to_replay(
    read: Sequence[SplitRange], recorded: Sequence[tuple[str, int, int, int]]
) -> tuple[SplitRange, ...]:
    """The recorded (topic, partition, start, end) as splits of the region that read them; pure.

    Raises:
        TransactionLostError: a range is not recorded, or not within what the region read.
    """
    by_name = {(split.topic, split.partition): split for split in read}
    splits: list[SplitRange] = []
    for topic, partition, start, end in recorded:
        whole = by_name.get((topic, partition))
        if whole is None or not whole.start_offset <= start <= end <= whole.end_offset:
            break
        splits.append(
            SplitRange(
                source_id=whole.source_id,
                topic=topic,
                topic_id=whole.topic_id,
                partition=partition,
                start_offset=start,
                end_offset=end,
                # Else the reader accepts records that a later leader has at the same offsets.
                leader_epoch=whole.leader_epoch,
                leader_epoch_end=None if end <= whole.known_end else whole.known_end,
            )
        )
    if not splits or len(splits) != len(recorded):
        raise TransactionLostError(
            "a lost transaction does not name its source ranges",
            {"ranges": ",".join(f"{s.name}[{s.start_offset},{s.end_offset})" for s in read)},
            "Replay these ranges manually; the coordinator cannot write them again.",
        )
    return tuple(splits)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRepairer(Repairer):
    """Reads the lost committable's ranges, applies the functions and pre-commits. Driver.

    Runs in the coordinator's process, without Spark: a repair comes before the first task.

    Attributes:
        regions: by name.
        sinks: coordinators of the sinks, which abort a failed repair, by operator id.
        job_name: for dead letters.
    """

    regions: Mapping[str, Region]
    sinks: Mapping[str, SinkCoordinator]
    job_name: str

    def repair(
        self,
        checkpoint_id: int,
        lost: LostCommittables,
        *,
        job_uid: str,
        attempt_id: int,
        timeout_s: float,
    ) -> Mapping[bytes, StateEntry]:
        """See `sluice.runtime.coordinator.committing.repairs.Repairer`.

        Reader and writer bound each of their own steps.
        """
        region = self._region(lost.region)
        task = f"repair-{checkpoint_id}-{lost.region.region.replace('.', '-')}"
        written: list[StateEntry] = []
        try:
            for number, entry in enumerate(lost.committables):
                sink = region.task_sinks[entry.operator_id]
                splits = _ranges_of(sink, entry, lost)
                scope = TaskScope(
                    job_uid=job_uid,
                    operator_id=entry.operator_id,
                    batch=BatchKey(
                        region=region.name,
                        attempt_id=attempt_id,
                        batch_id=0,  # the same for all regions that this process repairs
                    ),
                    checkpoint_id=checkpoint_id,
                    committed_through=0,
                    task=f"{task}-{number}.0",
                    source_ranges=splits,
                )
                again = self._written(region, scope)
                written += again
                _require_same(sink, entry, again, scope)
        except BaseException:
            discard(
                lambda e: self.sinks[e.operator_id].committer.abort([e], timeout_s=timeout_s),
                written,
            )
            raise
        lost_payloads = (entry.payload for entry in lost.committables)
        return dict(zip(lost_payloads, written, strict=True))

    def ranges(self, lost: LostCommittables) -> tuple[SplitRange, ...]:
        sinks = self._region(lost.region).task_sinks
        found = (_ranges_of(sinks[e.operator_id], e, lost) for e in lost.committables)
        return tuple(dict.fromkeys(chain.from_iterable(found)))

    def _written(self, region: Region, scope: TaskScope) -> Sequence[StateEntry]:
        """Copy the ranges of ``scope`` again; returns the new committables."""
        writer = region.task_sinks[scope.operator_id].writer_factory().open(scope, _Unregistered())
        records = region.pipeline.source.reader().read(scope.source_ranges)
        functions = FunctionRun(region.functions or (), job_name=self.job_name)
        holds_letters = scope.operator_id == region.dead_letter_sink
        batches = functions.applied(
            records, _writing_dead_letter(writer) if holds_letters else _skip_letters
        )
        return _write_all(writer, batches)

    def _region(self, record: RegionRecord) -> Region:
        """The region, or one that reads its source now."""
        sources = {split.source_id for split in record.splits}
        readers = (each for each in self.regions.values() if each.source_id in sources)
        return self.regions.get(record.region) or next(readers)


def _ranges_of(sink: Sink, entry: StateEntry, lost: LostCommittables) -> tuple[SplitRange, ...]:
    return ranges_to_replay(lost.region.splits, sink.source_ranges(entry))


def _require_same(
    sink: Sink, lost: StateEntry, again: Sequence[StateEntry], scope: TaskScope
) -> None:
    """Compare the number of records for each topic. They differ if compaction or retention has
    deleted records of the range, or if the pipeline has changed.

    Raises:
        TransactionLostError: they differ.
    """
    wanted = sink.record_counts(lost)
    found = [sink.record_counts(entry) for entry in again]
    if len(again) == 1 and (found == [wanted] or not wanted or not found[0]):
        return
    ranges = (f"{s.name}:[{s.start_offset},{s.end_offset})" for s in scope.source_ranges)
    raise TransactionLostError(
        "a lost transaction cannot be repaired: its ranges give other records now",
        {
            "checkpoint_id": scope.checkpoint_id,
            "sink": scope.operator_id,
            "ranges": " ".join(ranges),
            "expected": _counts_text(wanted),
            "replayed": " ".join(map(_counts_text, found)) or "nothing",
        },
        "Write the missing records manually, then let the job start with 'sluice checkpoint "
        "accept-loss'. No record of the transaction was committed.",
    )


def _counts_text(counts: Mapping[str, int]) -> str:
    return ",".join(f"{topic}:{records}" for topic, records in sorted(counts.items())) or "?"


def _writing_dead_letter(writer: SinkWriter) -> WriteDeadLetter:
    assert isinstance(writer, DeadLetterWriter)  # as for the lost transaction
    return writer.write_dead_letters


def _skip_letters(topic: str, letters: pa.RecordBatch) -> None:
    """Dead letters are in another sink's transaction, which has a repair of its own if lost."""


def _write_all(writer: SinkWriter, batches: Iterator[pa.RecordBatch]) -> Sequence[StateEntry]:
    try:
        for batch in batches:
            if batch.num_rows:
                writer.write(batch)
        return writer.pre_commit()
    except BaseException:
        writer.abort()  # the start fails, and only the next one sweeps
        raise
