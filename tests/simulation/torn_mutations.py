"""Decisions of which some transactions are done, lost or forgotten, taken in a wrong way: see
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
from sluice.runtime.coordinator.core import lost_transactions as lost_slices
from sluice.runtime.coordinator.start import settlement
from sluice.runtime.coordinator.start.settlement import Settlement
from sluice.runtime.model.model import CheckpointRecord, RegionRecord, StateEntry
from tests.simulation.kafka import identity_of
from tests.simulation.profiles import PROFILES

__all__ = ["TORN_MUTATIONS"]


def name_one_of_several(patch: pytest.MonkeyPatch) -> None:
    """Section 4: a decision names all that its tasks have pre-committed."""
    record_of = RunIdentity.record_of

    def broken(self: RunIdentity, *args: Any, **kwargs: Any) -> CheckpointRecord:
        record = record_of(self, *args, **kwargs)
        regions = tuple(replace(r, committables=r.committables[:1]) for r in record.regions)
        return replace(record, regions=regions)

    patch.setattr(RunIdentity, "record_of", broken)


def believe_one_for_all(patch: pytest.MonkeyPatch) -> None:
    """Section 4: a round that died half-way has committed some of a region's transactions."""
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
    assert name is not None
    return name.region, name.attempt_id


def repair_a_region_as_a_whole(patch: pytest.MonkeyPatch) -> None:
    """Rule `two-phase-repair`: of a decision only what is certainly lost is written again."""

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
    patch.setattr(lost_slices, "lost_by_region", broken)


def go_on_behind_a_repair_that_failed(patch: pytest.MonkeyPatch) -> None:
    """Rule `two-phase-repair`: what could not be written again stays lost, and stops the start."""
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


def repair_what_is_repaired(patch: pytest.MonkeyPatch) -> None:
    """Rule `two-phase-repair`: a repair on record is followed, however far its commits came."""
    patch.setattr(settlement, "_effective", lambda store, record: list(record.regions))


def _guess(patch: pytest.MonkeyPatch, outcome: CommitOutcome) -> None:
    def broken(handle: Any, described: Any) -> Judgement:
        return Judgement(outcome=outcome) if described is None else judge(handle, described)

    patch.setattr(committer, "judge", broken)


def take_what_is_forgotten_for_committed(patch: pytest.MonkeyPatch) -> None:
    """Rule `outcome-from-broker`: of an id that has expired nobody can tell what became of its
    transaction."""
    _guess(patch, CommitOutcome.COMMITTED)


def take_what_is_forgotten_for_lost(patch: pytest.MonkeyPatch) -> None:
    """Rule `outcome-from-broker`, the other way round: what is written again may be there."""
    _guess(patch, CommitOutcome.ABORTED)


def be_right_by_chance(patch: pytest.MonkeyPatch) -> None:
    """Rule `outcome-from-broker`: nor is it taken for committed where that happens to be so."""
    _guess(patch, CommitOutcome.COMMITTED)


def be_unsure_of_what_is_aborted(patch: pytest.MonkeyPatch) -> None:
    """Rule `outcome-from-broker`: a job stops and asks a person only where no broker can tell."""

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
    "name one of several": (
        name_one_of_several,
        asdict(PROFILES["several tasks"]),
        "visible before its decision",
    ),
    "believe one for all": (
        believe_one_for_all,
        _TORN,
        "marked before it is committed",
    ),
    "repair a region as a whole": (
        repair_a_region_as_a_whole,
        _TORN,
        "a repair replaces what is not lost",
    ),
    "go on behind a repair that failed": (
        go_on_behind_a_repair_that_failed,
        _BROKEN_REPAIRS,
        "marked before it is committed",
    ),
    "repair what is repaired": (
        repair_what_is_repaired,
        _BROKEN_REPAIRS,
        "a coordinator stops by TransactionLostError",
    ),
    "take what is forgotten for committed": (
        take_what_is_forgotten_for_committed,
        _FORGOTTEN,
        "marked before it is committed",
    ),
    "be right by chance": (
        be_right_by_chance,
        asdict(PROFILES["ids of several tasks expire"]),
        "marked though nobody was told how it ended",
    ),
    "take what is forgotten for lost": (
        take_what_is_forgotten_for_lost,
        _FORGOTTEN,
        "a repair replaces what is not lost",
    ),
    "be unsure of what is aborted": (
        be_unsure_of_what_is_aborted,
        _FORGOTTEN,
        "a job stops for what its brokers know",
    ),
}
