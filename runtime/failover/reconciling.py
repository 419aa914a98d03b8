"""Decides which attempts of an earlier coordinator continue under a new one. Pure.

A new coordinator calls it once, after its fencing record: from then on no older coordinator
decides, so the last decision is final. Everything else follows from that decision and from the
reports of the region hosts (docs/internals/separate-coordinator.md).
"""

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sluice.runtime.contracts import OpenWork, RegionRegistration
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.splits import SplitKey
from sluice.runtime.model.state.keyed_state import KeyedState

__all__ = ["RESUMES", "Finding", "Reconciled", "reconciled"]


class Finding(enum.Enum):
    """The result of comparing a region's report with the last decision."""

    MATCHES = "its attempt matches the last decision"
    NOT_REPORTED = "no host reported an attempt in time"
    NOT_RUNNING = "its attempt has ended, or cannot continue without its coordinator"
    ENDED = "an earlier coordinator has ended its attempt, or started a newer one"
    UNKNOWN = "its attempt is not older than this coordinator"
    CHANGED = "it reads other splits now, or to an end that an earlier coordinator has fixed"
    MOVED = "decisions have moved splits, and its task lacks their keyed state"
    SEVERAL_EPOCHS = "several of its epochs are acknowledged and not decided"
    ELSEWHERE = "its undecided epoch does not begin where the decision ends"


RESUMES: Mapping[Finding, bool] = {finding: finding is Finding.MATCHES for finding in Finding}
"""Whether the attempt resumes. Otherwise the region restarts from the last decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """The result for each region.

    Attributes:
        resumed: reports of the attempts that continue, by region; ``open`` has only the work that
            no decision contains, which the region acknowledges again.
        left: all other reports: their work that no decision contains is aborted.
        findings: by region.
    """

    resumed: Mapping[str, RegionRegistration] = field(default_factory=dict)
    left: tuple[RegionRegistration, ...] = ()
    findings: Mapping[str, Finding] = field(default_factory=dict)

    def without(self, region: str) -> "Reconciled":
        """The same, but this region restarts."""
        kept = {name: report for name, report in self.resumed.items() if name != region}
        return replace(self, resumed=kept, left=(*self.left, self.resumed[region]))

    @property
    def attempts(self) -> dict[str, int]:
        """Ids of the attempts that continue, by region."""
        return {region: found.attempt_id for region, found in self.resumed.items()}


def reconciled(
    reports: Iterable[RegionRegistration],
    decided: Mapping[str, RegionRecord],
    *,
    own_attempt: int,
    listed: Mapping[str, int],
    unchanged: Collection[str],
    keyed: Collection[str] = (),
) -> Reconciled:
    """Compare the reports with the last decision. Their order does not matter.

    Args:
        reports: of region hosts, perhaps late, repeated, or of attempts of earlier sessions.
        decided: each region in the last decision, with the splits that it has in this run.
        own_attempt: id of this coordinator's fencing record; it has started no attempt yet.
        listed: the attempt of each region that no earlier coordinator has ended; see
            `sluice.runtime.checkpoint.resumable_attempts`.
        unchanged: regions that read the same splits as their attempts, to no fixed end.
        keyed: regions with keyed state.
    """
    newest: dict[str, RegionRegistration] = {}
    left: list[RegionRegistration] = []
    for report in reports:
        known = newest.get(report.region)
        if known is None or _rank(report) > _rank(known):
            newest[report.region] = report
        if report.region not in decided:
            left.append(report)
        elif known is not None and known.attempt_id != report.attempt_id:
            left.append(min(known, report, key=_rank))
    findings, resumed = {}, {}
    for name, record in decided.items():
        found = newest.get(name)
        undecided = () if found is None else _undecided(found, record)
        findings[name] = finding = _finding(
            found,
            record,
            undecided,
            own_attempt=own_attempt,
            listed=listed.get(name),
            is_unchanged=name in unchanged,
            is_keyed=name in keyed,
        )
        if found is None:
            continue
        if RESUMES[finding]:
            resumed[name] = replace(found, open=undecided)
        else:
            left.append(found)
    return Reconciled(resumed=resumed, left=tuple(left), findings=findings)


def _rank(report: RegionRegistration) -> tuple[int, bool, int]:
    """The later one of two reports of an attempt knows more batches. If one says that the attempt
    has ended, it has."""
    batches = [work.batch.batch_id for work in report.open]
    return report.attempt_id, not report.may_resume, max(batches, default=-1)


def _undecided(report: RegionRegistration, record: RegionRecord) -> tuple[OpenWork, ...]:
    last = -1
    if record.batch_id is not None and record.attempt_id == report.attempt_id:
        last = record.batch_id
    found = [work for work in report.open if work.batch.batch_id > last]
    return tuple(sorted(found, key=lambda work: work.batch.batch_id))


def _finding(
    report: RegionRegistration | None,
    record: RegionRecord,
    undecided: Sequence[OpenWork],
    *,
    own_attempt: int,
    listed: int | None,
    is_unchanged: bool,
    is_keyed: bool,
) -> Finding:
    if report is None:
        return Finding.NOT_REPORTED
    if report.attempt_id >= own_attempt:
        return Finding.UNKNOWN
    if report.attempt_id != listed or report.attempt_id < record.attempt_id:
        return Finding.ENDED
    if not report.may_resume:
        return Finding.NOT_RUNNING
    if not is_unchanged:
        return Finding.CHANGED
    if is_keyed and not _has_state(report, record, undecided):
        return Finding.MOVED
    if len(undecided) > 1:
        return Finding.SEVERAL_EPOCHS
    if not all(_follows(work, record) for work in undecided):
        return Finding.ELSEWHERE
    return Finding.MATCHES


def _has_state(
    report: RegionRegistration, record: RegionRecord, undecided: Sequence[OpenWork]
) -> bool:
    """Whether its task has the keyed state of exactly its splits, as the decision names it.

    A split may leave and come back between two barriers of the task: then another region has
    written its state. An undecided epoch has begun after that, with what its barrier brought.
    """
    if set(report.splits or ()) != {split.key for split in record.splits}:
        return False
    return bool(undecided) or _sections(report.keyed_state) == _sections(record.keyed_state)


def _sections(state: KeyedState | None) -> dict[SplitKey, object]:
    """The files and sections with the state of each split that has one."""
    found = {} if state is None else state.sections()
    return {split: sections for split, sections in found.items() if sections}


def _follows(work: OpenWork, record: RegionRecord) -> bool:
    """Whether the epoch begins exactly where the decision ends, in each split of the region.

    A source may read transaction markers before that end again, but no record.
    """
    decided = {split.key: split for split in record.splits}
    return decided.keys() == {split.key for split in work.splits} and all(
        decided[split.key].known_end <= split.start_offset <= decided[split.key].end_offset
        for split in work.splits
    )
