"""Wrong recoveries of a decision with some transactions committed, lost or expired; see
`tests.simulation.mutations`."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest

from sluice.connectors.kafka.sink.committer import kafka_committer as committer
from sluice.connectors.kafka.sink.committer.commit_outcomes import Judgement, judge
from sluice.connectors.kafka.sink.committer.kafka_committer import KafkaCommitter
from sluice.connectors.kafka.sink.handles import TransactionalId
from sluice.runtime.checkpoint.lost_work import LostCommittables, digest_of
from sluice.runtime.contracts import CommitOutcome, CommitReport, PublishOutcome
from sluice.runtime.coordinator.committing.commit_steps import RunIdentity
from sluice.runtime.coordinator.core import failed_steps
from sluice.runtime.coordinator.start import settlement
from sluice.runtime.coordinator.start.settlement import Settlement
from sluice.runtime.model.checkpoint_record import CheckpointRecord, RegionRecord, StateEntry
from tests.simulation.kafka import identity_of
from tests.simulation.profiles import PROFILES


def name_one_of_several_committables(patch: pytest.MonkeyPatch) -> None:
    """A decision names all committables of its tasks."""
    record_of = RunIdentity.record_of

    def broken(self: RunIdentity, *args: Any, **kwargs: Any) -> CheckpointRecord:
        record = record_of(self, *args, **kwargs)
        regions = tuple(replace(r, committables=r.committables[:1]) for r in record.regions)
        return replace(record, regions=regions)

    patch.setattr(RunIdentity, "record_of", broken)


def trust_one_report_for_all(patch: pytest.MonkeyPatch) -> None:
    """A round of commits that died half-way has committed some of a region's transactions only."""
    commit = KafkaCommitter.commit

    def broken(self: Any, entries: Sequence[StateEntry], **limits: Any) -> list[CommitReport]:
        reports = commit(self, entries, **limits)
        regions = [_region_of(entry) for entry in entries]
        done = {
            region
            for region, report in zip(regions, reports, strict=True)
            if report.outcome is CommitOutcome.COMMITTED
        }
        return [
            replace(report, outcome=CommitOutcome.COMMITTED) if region in done else report
            for region, report in zip(regions, reports, strict=True)
        ]

    patch.setattr(KafkaCommitter, "commit", broken)


def _region_of(entry: StateEntry) -> tuple[str, int]:
    name = TransactionalId.parse(identity_of(entry).transactional_id)
    return name.region, name.attempt_id


def repair_a_region_as_a_whole(patch: pytest.MonkeyPatch) -> None:
    """Rule `two-phase-repair`: a repair writes again only those transactions of a decision that are
    certainly lost."""

    def broken(
        regions: Iterable[RegionRecord], lost: Iterable[StateEntry]
    ) -> tuple[LostCommittables, ...]:
        gone = set(lost)
        return tuple(
            LostCommittables(region=region, committables=region.committables)
            for region in regions
            if gone & set(region.committables)
        )

    patch.setattr(settlement, "lost_by_region", broken)
    patch.setattr(failed_steps, "lost_by_region", broken)


def continue_after_a_failed_repair(patch: pytest.MonkeyPatch) -> None:
    """Rule `two-phase-repair`: a loss whose repair failed stays a loss, and stops the start."""
    repair_each = Settlement._repair_each  # noqa: SLF001 - broken on purpose

    def broken(
        self: Settlement, record: CheckpointRecord, found: Iterable[LostCommittables]
    ) -> Generator[str, None, list[PublishOutcome]]:
        told = yield from repair_each(self, record, found)
        failed = [r for r in record.regions if r.region in self._failed_repairs]
        self._left_out |= {digest_of(entry) for region in failed for entry in region.committables}
        self._committers = settlement.SharedCommitters(self.sinks, self.plan)
        return [*told, PublishOutcome.OURS] if failed else told

    patch.setattr(Settlement, "_repair_each", broken)


def repair_twice(patch: pytest.MonkeyPatch) -> None:
    """Rule `two-phase-repair`: a later start completes a recorded repair, even if only some of its
    commits are done."""
    patch.setattr(settlement, "_effective", lambda store, record: list(record.regions))


def _guess(patch: pytest.MonkeyPatch, outcome: CommitOutcome) -> None:
    def broken(handle: Any, described: Any) -> Judgement:
        return Judgement(outcome=outcome) if described is None else judge(handle, described)

    patch.setattr(committer, "judge", broken)


def take_expired_ids_for_committed(patch: pytest.MonkeyPatch) -> None:
    """Rule `outcome-from-broker`: after an id has expired, no broker knows whether its transaction
    was committed."""
    _guess(patch, CommitOutcome.COMMITTED)


def take_expired_ids_for_lost(patch: pytest.MonkeyPatch) -> None:
    """Rule `outcome-from-broker`: the transaction of an expired id may be committed, so writing it
    again may double records."""
    _guess(patch, CommitOutcome.ABORTED)


def guess_and_be_right(patch: pytest.MonkeyPatch) -> None:
    """Rule `outcome-from-broker`: the transaction of an expired id does not count as committed,
    even if it is committed."""
    _guess(patch, CommitOutcome.COMMITTED)


def doubt_aborted_transactions(patch: pytest.MonkeyPatch) -> None:
    """Rule `outcome-from-broker`: a job stops for a decision of an operator only if no broker knows
    the outcome."""

    def broken(handle: Any, described: Any) -> Judgement:
        found = judge(handle, described)
        is_aborted = found.outcome is CommitOutcome.ABORTED
        return replace(found, outcome=CommitOutcome.UNKNOWN) if is_aborted else found

    patch.setattr(committer, "judge", broken)


_FORGOTTEN = asdict(PROFILES["ids and transactions expire, what is lost is repaired"])
_TORN = asdict(PROFILES["commits are torn, transactions expire and are repaired"])
_BROKEN_REPAIRS = asdict(PROFILES["repairs fail half-way"])

TORN_MUTATIONS: Mapping[
    str, tuple[Callable[[pytest.MonkeyPatch], None], Mapping[str, Any], str]
] = {
    "name one of several committables": (
        name_one_of_several_committables,
        asdict(PROFILES["several tasks"]),
        "visible before its decision",
    ),
    "trust one report for all": (trust_one_report_for_all, _TORN, "marked before it is committed"),
    "repair a region as a whole": (
        repair_a_region_as_a_whole,
        _TORN,
        "a repair replaces what is not lost",
    ),
    "continue after a failed repair": (
        continue_after_a_failed_repair,
        _BROKEN_REPAIRS,
        "marked before it is committed",
    ),
    "repair twice": (repair_twice, _BROKEN_REPAIRS, "a coordinator stops by TransactionLostError"),
    "take expired ids for committed": (
        take_expired_ids_for_committed,
        _FORGOTTEN,
        "marked before it is committed",
    ),
    "guess and be right": (
        guess_and_be_right,
        asdict(PROFILES["ids of several tasks expire"]),
        "marked though no record says how it ended",
    ),
    "take expired ids for lost": (
        take_expired_ids_for_lost,
        _FORGOTTEN,
        "a repair replaces what is not lost",
    ),
    "doubt aborted transactions": (
        doubt_aborted_transactions,
        _FORGOTTEN,
        "a job stops for what its brokers know",
    ),
}
