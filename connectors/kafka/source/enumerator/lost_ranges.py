"""What is gone of a source's records before, or since, they were read: judged and told, once each.

A position says how far a partition was read, and which leader said so. Retention moves a
partition's first record behind a position. An unclean election, or a disk that lost its newest
records, moves its end before one; and where the log has grown again since, only the leaders'
epochs tell that other records are there now. What an open transaction hides is not gone.

What is missing for a moment only: looked for again before it counts.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import TypeVar

from sluice.connectors.kafka.source.enumerator.discovery import Look, OffsetFact, SourceCluster
from sluice.connectors.kafka.source.enumerator.leader_epochs import EpochQuestion
from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.connectors.kafka.source.splits import (
    LostRange,
    batch_cut_off,
    beyond,
    data_lost,
    key_of,
    log_cut_off,
    log_rewritten,
    lost_to_retention,
)
from sluice.runtime.contracts import Clock
from sluice.runtime.errors import UnreachableError
from sluice.runtime.model.model import SplitRange

__all__ = ["ABSENCE_S", "LossWatch", "Patience"]

# Metadata lags behind for a moment after a broker's start; absence counts when it lasts.
ABSENCE_S = 3.0
_PAUSE_S = 0.2

T = TypeVar("T")
A = TypeVar("A", bound=Sized)


class Patience:
    """Looks until nothing is missing. Driver; one thread at a time.

    Args:
        clock: monotonic seconds.
        pause: between two looks.
    """

    def __init__(self, clock: Clock, pause: Callable[[float], object]) -> None:
        self._clock = clock
        self._pause = pause

    def unless_lasting(
        self,
        find: Callable[[], tuple[T, A]],
        retry_for_s: Callable[[T], float] = lambda _: ABSENCE_S,
    ) -> tuple[T, A]:
        """What was found, and what was missing in it: nothing, or what has been for so long.

        Args:
            find: looks.
            patience_s: for how long, by what was found.
        """
        began_s = None
        while True:
            found, absent = find()
            if began_s is None:  # behind the first look, whose time counts for nothing
                began_s = self._clock()
            if not absent or self._clock() - began_s >= retry_for_s(found):
                return found, absent
            self._pause(_PAUSE_S)


log = logging.getLogger(__name__)

_TOLD_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """What logs still have of ranges that were cut before.

    Attributes:
        ends: where those logs were cut off that were, before their range's end.
        firsts: first offsets that are still there, of all.
        waited_for: logs that are shorter, and may be so for a moment.
    """

    ends: Mapping[PartitionKey, int]
    firsts: Mapping[PartitionKey, int]
    waited_for: Collection[PartitionKey]

    def end_of(self, split: SplitRange) -> int:
        """How far a range can be read."""
        return self.ends.get(key_of(split), split.end_offset)

    @property
    def present(self) -> Mapping[PartitionKey, tuple[int, int]]:
        """First offset and end of the logs that were cut off."""
        return {key: (min(self.firsts.get(key, 0), end), end) for key, end in self.ends.items()}


class LossWatch:
    """Where positions go on. Driver; one thread at a time.

    Args:
        cluster: asked where a leader's records end, when there is a later leader, and where a log
            does, when readers may not see up to a position.
        fail_on_data_loss: raise DataLostError, or go on behind what is gone.
        clock: monotonic seconds.

    Attributes:
        lost_records: offsets that retention took before they were read (failOnDataLoss=false).
    """

    def __init__(self, cluster: SourceCluster, clock: Clock, *, fail_on_data_loss: bool) -> None:
        self._cluster = cluster
        self._clock = clock
        self._fails = fail_on_data_loss
        self._shorter: dict[PartitionKey, tuple[float, int]] = {}  # since when, the lowest end
        self._counted: dict[PartitionKey, LostRange] = {}
        self._answers: dict[PartitionKey, tuple[EpochQuestion, int | None]] = {}
        self._told: dict[PartitionKey, LostRange] = {}
        self._outdated: set[PartitionKey] = set()
        self.lost_records = 0

    def starts(
        self,
        positions: Sequence[SplitRange],
        look: Look,
        *,
        retry_for_s: float,
        timeout_s: float,
    ) -> dict[PartitionKey, int]:
        """Where each position goes on: its end, or where what is gone says.

        Args:
            patience_s: for how long a log may be shorter than a position.
            timeout_s: for the leaders' answers.
        Raises:
            DataLostError: something is gone, and that is to be an error.
            UnreachableError: a new leader does not answer.
        """
        starts = self.behind_retention(positions, look)
        ends = self._earlier_ends(positions, look, timeout_s)
        starts |= self._rewritten(positions, ends, look)
        # Up to where the present leader has told, a log is only not shown yet.
        return starts | self._cut_off(starts, look, retry_for_s, told=ends.keys())

    def told_ends(
        self, keys: Collection[PartitionKey], *, timeout_s: float
    ) -> Mapping[PartitionKey, OffsetFact]:
        """By whom the logs have what lies before a start: whether a later leader lacks some of it
        can be asked then. Nobody waits for a partition without a leader; nothing is told then."""
        try:
            return self._cluster.log_ends(keys, timeout_s=min(timeout_s, _TOLD_S)) if keys else {}
        except UnreachableError as err:
            log.info("no leader tells what lies before the start: error=%s", err)
            return {}

    def with_log_ends(
        self, starts: Mapping[PartitionKey, int], look: Look, *, timeout_s: float
    ) -> Look:
        """And where those logs end of which readers may not see as much as lies before a position.

        Raises:
            UnreachableError: nobody answers.
        """
        hidden = _hidden(starts, look)
        if not hidden:
            return look
        return replace(look, log_ends=self._cluster.log_ends(hidden, timeout_s=timeout_s))

    def of_no_earlier_leader(self, positions: Sequence[SplitRange], look: Look) -> Look:
        """Without what an earlier leader than a position's tells of a log: a broker that is cut
        off from the others does so, and of its log nothing more counts, nor what it has deleted.

        Only an end tells by whom: with a log's first offset comes the epoch of its first record.
        """
        known = {key_of(split): split.leader_epoch for split in positions}
        outdated = {
            key
            for key, fact in look.latest.items()
            if (epoch := known.get(key)) is not None
            and fact.leader_epoch is not None
            and fact.leader_epoch < epoch
        }
        for topic, partition in sorted(outdated - self._outdated):
            log.warning(
                "a former leader answers, waiting for the present one: partition=%s-%d",
                topic,
                partition,
            )
        self._outdated = self._outdated - known.keys() | outdated  # other regions' stay noted
        return replace(
            look,
            earliest={key: fact for key, fact in look.earliest.items() if key not in outdated},
            latest={key: fact for key, fact in look.latest.items() if key not in outdated},
        )

    def behind_retention(
        self, positions: Sequence[SplitRange], look: Look
    ) -> dict[PartitionKey, int]:
        """Their ends, or what is left behind them."""
        starts = {key_of(split): split.end_offset for split in positions}
        earliest = {key: fact.offset for key, fact in look.earliest.items()}
        lost = lost_to_retention(positions, earliest)
        if not lost:
            return starts
        if self._fails:
            raise data_lost(lost)
        self._count(lost)
        return {key: max(start, earliest.get(key, 0)) for key, start in starts.items()}

    def replayable(
        self,
        ranges: Sequence[SplitRange],
        look: Callable[[], Look],
        patience: Patience,
        *,
        retry_for_s: float,
        timeout_s: float,
        counts: bool,
    ) -> tuple[SplitRange, ...]:
        """Ranges that another process has cut, each up to where its log was cut off since; whose
        records they are stays known.

        Args:
            look: at their partitions, now.
            patience_s: for how long a log may be shorter than a range.
            timeout_s: for the leaders' answers.
            counts: see `SplitEnumerator.replayable`.
        Raises:
            DataLostError: one is cut off, and that is to be an error.
            UnreachableError: nobody answers.
        """

        def find() -> tuple[_Left, Collection[PartitionKey]]:
            found = self.of_no_earlier_leader(ranges, look())
            left = self._left_of(ranges, found, retry_for_s=retry_for_s, timeout_s=timeout_s)
            return left, left.waited_for

        left, _ = patience.unless_lasting(find, lambda _: retry_for_s)
        lost = [split for split in ranges if left.end_of(split) < split.known_end]
        if lost and self._fails:
            raise batch_cut_off(lost, left.present)
        if counts:
            self._count([_lost_of(split, left.end_of(split)) for split in lost])
        return tuple(_up_to(split, left.end_of(split)) for split in ranges)

    def _left_of(
        self, ranges: Sequence[SplitRange], look: Look, *, retry_for_s: float, timeout_s: float
    ) -> _Left:
        """A later leader knows for good where the log that a range was cut from ends. Otherwise a
        log has to be shorter for a while: a new leader may know a lower end for a moment."""
        wanted = {key_of(split): split.end_offset for split in ranges}
        look = self.with_log_ends(wanted, look, timeout_s=timeout_s)
        told = self._earlier_ends(ranges, look, timeout_s)
        lasting, waited_for = self._shorter_for(retry_for_s, wanted, look, told)
        return _Left(
            ends={key: end for key, end in told.items() if end < wanted[key]} | lasting,
            firsts={key: fact.offset for key, fact in look.earliest.items()},
            waited_for=waited_for,
        )

    def note_shorter(
        self, starts: Mapping[PartitionKey, int], look: Look
    ) -> Mapping[PartitionKey, int | None]:
        """Logs that end before their positions, and where; None: nobody tells just now.

        Since when they do is noted; others, and those that nobody tells of, stay noted.
        """
        ends = {key: _log_end(key, look) for key in _hidden(starts, look)}
        shorter = {key: end for key, end in ends.items() if end is None or end < starts[key]}
        before, now_s = self._shorter, self._clock()
        unseen = before.keys() - (starts.keys() & look.latest.keys())
        self._shorter = {key: before[key] for key in unseen}
        for key, end in shorter.items():
            noted = before.get(key)
            if end is not None and (noted is None or end < noted[1]):
                noted = (now_s, end)
            if noted is not None:
                self._shorter[key] = noted
        return shorter

    def _earlier_ends(
        self, positions: Sequence[SplitRange], look: Look, timeout_s: float
    ) -> Mapping[PartitionKey, int]:
        """Where those leaders' records end that positions are from, where there is a later one.

        Each is asked once: an end that a later leader has told stays what it is.
        """
        asked = {
            key_of(split): question
            for split in positions
            if (question := _question(split, look.latest.get(key_of(split)))) is not None
        }
        new = {key: q for key, q in asked.items() if self._answers.get(key, (None, None))[0] != q}
        if new:
            ends = self._cluster.epoch_ends(new, timeout_s=timeout_s)
            self._answers |= {key: (question, ends.get(key)) for key, question in new.items()}
        return {key: end for key in asked if (end := self._answers[key][1]) is not None}

    def _rewritten(
        self, positions: Sequence[SplitRange], ends: Mapping[PartitionKey, int], look: Look
    ) -> dict[PartitionKey, int]:
        """Where a later leader's log left the one that was read, before its position."""
        before = [s for s in positions if ends.get(key_of(s), s.end_offset) < s.end_offset]
        # A later leader may have written the markers behind the last record that was read.
        lost = [
            LostRange(
                topic=split.topic,
                partition=split.partition,
                start_offset=ends[key_of(split)],
                end_offset=split.end_offset,
            )
            for split in before
            if ends[key_of(split)] < split.known_end
        ]
        if lost and self._fails:
            raise log_rewritten(lost)
        fresh = [found for found in lost if self._told.get(found.key) != found]
        if fresh:
            self._told |= {found.key: found for found in fresh}
            log.warning(
                "records that were read are gone, going back to what is in their place: ranges=%s",
                " ".join(map(str, fresh)),
            )
        first = {key: fact.offset for key, fact in look.earliest.items()}
        return {key: max(ends[key], first.get(key, 0)) for key in map(key_of, before)}

    def _cut_off(
        self,
        starts: Mapping[PartitionKey, int],
        look: Look,
        retry_for_s: float,
        *,
        told: Collection[PartitionKey],
    ) -> dict[PartitionKey, int]:
        """Judge logs that end before a position, once that lasts: their records are lost, and what
        has come since at the lowest end is in their place."""
        lasting, _ = self._shorter_for(retry_for_s, starts, look, told)
        lost = [
            LostRange(
                topic=topic,
                partition=number,
                start_offset=end,
                end_offset=starts[topic, number],
            )
            for (topic, number), end in sorted(lasting.items())
        ]
        if not lost:
            return {}
        if self._fails:
            raise log_cut_off(lost)
        self._count(lost)
        return lasting

    def _shorter_for(
        self,
        retry_for_s: float,
        starts: Mapping[PartitionKey, int],
        look: Look,
        told: Collection[PartitionKey],
    ) -> tuple[dict[PartitionKey, int], Collection[PartitionKey]]:
        """Shorter logs of whose end nobody has ``told`` for good: the lowest end of those that have
        been so for so long, and the others."""
        now_s = self._clock()
        noted = {
            key: self._shorter[key]
            for key, end in self.note_shorter(starts, look).items()
            if end is not None and key not in told
        }
        lasting = {key: end for key, (at_s, end) in noted.items() if now_s - at_s >= retry_for_s}
        return lasting, noted.keys() - lasting.keys()

    def _count(self, lost: Sequence[LostRange]) -> None:
        """Once each: a position stays before a loss until there is something to read behind it."""
        fresh = [found for found in lost if self._counted.get(found.key) != found]
        new = [beyond(found, self._counted.get(found.key)) for found in fresh]
        if not new:
            return
        self._counted |= {found.key: found for found in fresh}
        records = sum(r.end_offset - r.start_offset for r in new)
        self.lost_records += records
        log.warning(
            "records lost, going on behind them: records=%d ranges=%s",
            records,
            " ".join(map(str, new)),
        )


def _lost_of(split: SplitRange, end: int) -> LostRange:
    """What a range has lost whose log ends there."""
    return LostRange(
        topic=split.topic,
        partition=split.partition,
        start_offset=max(split.start_offset, end),
        end_offset=split.end_offset,
    )


def _up_to(split: SplitRange, end: int) -> SplitRange:
    """The range as far as its log goes. The leader that it was cut under stays: what a later one
    has written is none of it."""
    if end == split.end_offset:
        return split
    known = None if end <= split.known_end else split.leader_epoch_end
    return replace(split, end_offset=max(split.start_offset, end), leader_epoch_end=known)


def _hidden(starts: Mapping[PartitionKey, int], look: Look) -> list[PartitionKey]:
    """Positions that readers may not see up to: of a log that ends before, or that a transaction
    holds open."""
    return [key for key, fact in look.latest.items() if fact.offset < starts.get(key, 0)]


def _log_end(key: PartitionKey, look: Look) -> int | None:
    """None: it is not told, or by an earlier leader than the one that told what is visible."""
    end, told = look.log_ends.get(key), look.latest[key].leader_epoch
    if end is None or (
        told is not None and end.leader_epoch is not None and end.leader_epoch < told
    ):
        return None
    return end.offset


def _question(split: SplitRange, fact: OffsetFact | None) -> EpochQuestion | None:
    """What to ask a leader that is later than the one a position is from."""
    read, current = split.leader_epoch, None if fact is None else fact.leader_epoch
    if read is None or current is None or current <= read:
        return None
    return EpochQuestion(leader_epoch=read, current_leader_epoch=current)
