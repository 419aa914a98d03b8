"""The verdict on random histories is the one of a naive oracle, which counts and tries."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sluice.connectors.testing.assertions import assert_exactly_once
from sluice.connectors.testing.verdict import NotExactlyOnceError, Verdict
from sluice.runtime.checker import (
    Finding,
    HistoryVerdict,
    Identity,
    Kind,
    Location,
    Record,
    SpilledHistory,
    check_spilled,
)
from sluice.runtime.checker.spilled import LEAST_MEMORY_BYTES
from tests.kit.effort import examples

_serial = itertools.count()


class Given(NamedTuple):
    """An input record: hidden ones are those of aborted and open transactions."""

    partition: int
    content: str
    is_hidden: bool


class Found(NamedTuple):
    """An output record."""

    partition: int
    content: str


INPUTS = st.lists(
    st.builds(Given, st.integers(0, 1), st.sampled_from("abcdefgh"), st.booleans()), max_size=20
)
OUTPUTS = st.lists(st.builds(Found, st.integers(0, 1), st.sampled_from("abcdefghxy")), max_size=20)


def oracle(inputs: Sequence[Given], outputs: Sequence[Found]) -> dict[str, int]:
    """The counts of a verdict."""
    visible = [one for one in inputs if not one.is_hidden]
    counts = Counter[str]()
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for content in {one.content for one in (*inputs, *outputs)}:
        want = [n for n, one in enumerate(visible) if one.content == content]
        have = [n for n, one in enumerate(outputs) if one.content == content]
        hidden = [one for one in inputs if one.is_hidden and one.content == content]
        paired = min(len(want), len(have))
        aborted = min(len(have) - paired, len(hidden))
        rest = len(have) - paired - aborted
        counts["lost"] += len(want) - paired
        counts["aborted"] += aborted
        counts["duplicated" if want or hidden else "unexpected"] += rest
        lanes = {visible[n].partition for n in want} | {one.partition for one in hidden}
        if len(lanes) > 1 or len({outputs[n].partition for n in have}) > 1 or aborted:
            counts["unordered"] += paired
            continue
        for e, f in zip(want[:paired], have[:paired], strict=True):
            pairs.setdefault((visible[e].partition, outputs[f].partition), []).append((f, e))
    for flow in pairs.values():
        counts["reordered"] += len(flow) - longest_rise([e for _, e in sorted(flow)])
    return {**dict.fromkeys(("unexpected", "duplicated", "reordered", "unordered"), 0), **counts}


def longest_rise(values: Sequence[int]) -> int:
    """The length of the longest rising part, by trying each."""
    longest: list[int] = []
    for at, value in enumerate(values):
        longest.append(1 + max((longest[b] for b in range(at) if values[b] < value), default=0))
    return max(longest, default=0)


def judged(
    directory: Path, inputs: Sequence[Given], outputs: Iterable[tuple[int, Found]], *, rows: int
) -> tuple[HistoryVerdict, list[Finding]]:
    """The checker's verdict with so many rows in memory, and its findings.

    Args:
        outputs: with offsets, in reading order.
    """
    place, identity = directory / str(next(_serial)), Identity(partition=False)
    findings: list[Finding] = []
    with (
        SpilledHistory(place / "want", identity, memory_bytes=LEAST_MEMORY_BYTES) as want,
        SpilledHistory(place / "have", identity, memory_bytes=LEAST_MEMORY_BYTES) as have,
    ):
        want.rows_in_memory = have.rows_in_memory = rows
        for is_hidden in (False, True):
            for offset, one in enumerate(inputs):
                if one.is_hidden is is_hidden:
                    at = Location("in", one.partition, offset)
                    record = Record("out", 0, 0, None, one.content.encode())
                    want.append(record, read_from=at, is_hidden=is_hidden)
        for offset, got in outputs:
            have.append(Record("out", got.partition, offset, None, got.content.encode()))
        return check_spilled(want, have, sink=findings.append), findings


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(200))
@given(inputs=INPUTS, outputs=OUTPUTS)
@example(inputs=[Given(0, "a", True)], outputs=[Found(0, "a"), Found(0, "a")])
@example(
    inputs=[Given(0, "a", True), Given(0, "b", False), Given(0, "a", False)],
    outputs=[Found(0, "a"), Found(0, "b"), Found(0, "a")],
)
def test_the_verdict_is_the_oracles(
    tmp_path: Path, inputs: list[Given], outputs: list[Found]
) -> None:
    verdict, findings = judged(tmp_path, inputs, enumerate(outputs), rows=2_000)
    wanted = oracle(inputs, outputs)
    assert {name: getattr(verdict, name) for name in wanted} == wanted
    assert verdict.expected == sum(not one.is_hidden for one in inputs)
    assert verdict.found == len(outputs)
    assert Counter(one.kind for one in findings) == {
        kind: count for kind in Kind if (count := wanted.get(kind.value, 0))
    }


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(50))
@given(inputs=INPUTS, outputs=OUTPUTS)
@example(inputs=[Given(0, "a", False)], outputs=[Found(1, "a"), Found(0, "a")])
def test_the_mixture_of_partitions_changes_no_finding(
    tmp_path: Path, inputs: list[Given], outputs: list[Found]
) -> None:
    """A reader gets the records of several partitions in another order each time."""
    _, findings = judged(tmp_path, inputs, enumerate(outputs), rows=2_000)
    lanes = [[one for one in enumerate(outputs) if one[1].partition == number] for number in (0, 1)]
    _, others = judged(tmp_path, inputs, [*lanes[0], *lanes[1]], rows=2_000)
    assert sorted(findings, key=str) == sorted(others, key=str)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(50))
@given(inputs=INPUTS, outputs=OUTPUTS)
def test_memory_for_two_records_changes_no_count(
    tmp_path: Path, inputs: list[Given], outputs: list[Found]
) -> None:
    """Order apart: equal contents that are compared piece by piece have none."""
    verdict, _ = judged(tmp_path, inputs, enumerate(outputs), rows=2)
    wanted = oracle(inputs, outputs)
    for name in ("lost", "duplicated", "unexpected", "aborted"):
        assert getattr(verdict, name) == wanted.get(name, 0)


@pytest.mark.parametrize("order", [True, False])
@given(contents=st.lists(st.sampled_from("abcdef")), outputs=st.lists(st.sampled_from("abcdefx")))
def test_the_assertion_names_the_oracles_kinds_and_counts(
    contents: list[str], outputs: list[str], *, order: bool
) -> None:
    if not contents and not outputs:
        return
    wanted = oracle([Given(0, one, False) for one in contents], [Found(0, one) for one in outputs])
    options: dict[str, Any] = {} if order else {"order": False}
    verdict = verdict_of(contents, outputs, **options)
    assert {fault.kind: fault.count for fault in verdict.faults} == {
        kind.value: count
        for kind in Kind
        if (count := wanted.get(kind.value)) and (order or kind is not Kind.REORDERED)
    }


def verdict_of(contents: list[str], outputs: list[str], **options: Any) -> Verdict:
    try:
        return assert_exactly_once(contents, outputs, **options)
    except NotExactlyOnceError as wrong:
        return wrong.verdict
