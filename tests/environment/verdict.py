"""Compares the outputs of a round with the records that the feeder sent.

Each record must be in every output: once, in order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sluice.runtime.checker import History, HistoryVerdict
from tests.chaos.programs import (
    BOTH,
    COPY,
    STATE_NUMBERS,
    BothVerdict,
    NumbersVerdict,
    Topics,
)
from tests.kit.memory_checker import check_prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundVerdict:
    """The checker's findings in one round's output.

    Attributes:
        records: that each output must have once.
        outputs: 1, or 2 with files.
        faults: descriptions; empty: lost 0, doubled 0, reordered 0, foreign 0, and a reader saw at
            any time a prefix of the final output.
        counts: over all outputs, of records ``lost``, ``doubled``, ``reordered`` and ``foreign``
            (never sent, or with another content). ``torn`` counts partitions in which a reader saw
            records that are not in the final output.
    """

    records: int
    outputs: int
    faults: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


def judge_all(topics: Topics, *, sent: int, writes_files: bool) -> RoundVerdict:
    """Every sent record must be in every output."""
    verdict = (BOTH if writes_files else COPY).judge(topics)
    if isinstance(verdict, BothVerdict):
        outputs = {"topic": verdict.topic, "files": verdict.files.found}
        out_of_order = verdict.files.out_of_order
    else:
        assert isinstance(verdict, HistoryVerdict)
        outputs, out_of_order = {"topic": verdict}, []
    there = outputs["topic"].found
    miscounted = [] if there == sent else [f"{sent} records were sent, {there} are there"]
    return RoundVerdict(
        records=sent,
        outputs=len(outputs),
        faults=(*_told(outputs), *out_of_order, *miscounted),
        counts=_counts(outputs, out_of_order),
    )


def judge_numbers(topics: Topics, *, sent: int) -> RoundVerdict:
    """Every sent record must have its number among those of its key, once and in order."""
    verdict = STATE_NUMBERS.judge(topics)
    assert isinstance(verdict, NumbersVerdict)
    counts = verdict.counts
    miscounted = [] if counts.emissions == sent else [f"{sent} sent, {counts.emissions} numbered"]
    told = [] if verdict.is_clean else [str(counts), *verdict.skipped]
    return RoundVerdict(
        records=sent,
        outputs=1,
        faults=(*told, *miscounted),
        counts={
            "lost": counts.missing + counts.wrong,
            "doubled": counts.repeated,
            "reordered": counts.regressed + len(verdict.skipped),
            "foreign": counts.unexpected,
        },
    )


def with_sight(found: RoundVerdict, seen: History, final: History) -> RoundVerdict:
    """The verdict, with the records that a reader saw during the round. Pure.

    Args:
        found: the verdict on the final outputs.
        seen: records of the topic that the reader saw.
        final: records of the topic at the end.
    """
    prefix = check_prefix(seen, final)
    faults = [] if prefix.is_clean else [f"a reader: {prefix}"]
    torn = found.counts.get("torn", 0) + len(prefix.broken)
    return replace(found, faults=(*found.faults, *faults), counts={**found.counts, "torn": torn})


def _told(outputs: Mapping[str, HistoryVerdict]) -> list[str]:
    return [f"{name}: {verdict}" for name, verdict in outputs.items() if not verdict.is_clean]


def _counts(outputs: Mapping[str, HistoryVerdict], out_of_order: Sequence[str]) -> dict[str, int]:
    found = list(outputs.values())
    return {
        "lost": sum(one.lost for one in found),
        "doubled": sum(one.duplicated for one in found),
        "reordered": sum(one.reordered for one in found) + len(out_of_order),
        "foreign": sum(one.unexpected + one.corrupted for one in found),
        "torn": sum(one.torn for one in found),
    }
