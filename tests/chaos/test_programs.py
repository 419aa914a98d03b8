"""Programs other than the copy, killed at each change of the durable state; all of them on demand.

As in `tests.chaos.test_failpoints`. A module of its own, for a module stays in one process.
"""

from pathlib import Path

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.chaos.beds import CHAINS, DROP_IN_ABSENT, kills, twice
from tests.chaos.programs import (
    AT_LEAST_ONCE,
    COUNT,
    DROP_IN,
    KEYED_COUNTS,
    TWO_REGIONS,
    WINDOWED,
    WINDOWED_DROP_IN,
    Subject,
)
from tests.chaos.scenario import Kill, Scenario, Setting, survive

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(2400)]


@pytest.mark.parametrize(
    ("subject", "failpoints"),
    [
        pytest.param(COUNT, ("after-flush", "mid-commit"), marks=pytest.mark.long),
        pytest.param(KEYED_COUNTS, ("after-flush", "mid-commit"), marks=pytest.mark.long),
        (DROP_IN, ("mid-commit",)),
        pytest.param(DROP_IN, ("after-flush",), marks=pytest.mark.long),
        pytest.param(TWO_REGIONS, ("mid-commit",), marks=pytest.mark.long),
        pytest.param(TWO_REGIONS, ("before-decision",), marks=pytest.mark.long),
    ],
    ids=[
        "count",
        "keyed counts",
        "drop-in",
        "drop-in, flushed",
        "two regions",
        "two regions, before",
    ],
)
def test_others_survive_a_kill_where_the_truth_changes_hands(
    kafka: EmbeddedKafka, tmp_path: Path, subject: Subject, failpoints: tuple[str, ...]
) -> None:
    survive(subject, kafka, tmp_path, kills(failpoints))


@pytest.mark.long
@pytest.mark.parametrize(
    ("subject", "failpoints"),
    [
        (WINDOWED, ("before-decision",)),
        (WINDOWED, ("after-decision",)),
        (WINDOWED_DROP_IN, ("after-decision",)),
        (WINDOWED_DROP_IN, ("before-decision",)),
    ],
    ids=["job", "job, after", "drop-in", "drop-in, before"],
)
def test_windows_survive_kills_around_the_decision(
    kafka: EmbeddedKafka, tmp_path: Path, subject: Subject, failpoints: tuple[str, ...]
) -> None:
    """Batches without records close windows: they must not be taken for a replay
    (`batch-identity`)."""
    survive(subject, kafka, tmp_path, kills(failpoints, hit=3))


@pytest.mark.long
def test_at_least_once_loses_nothing(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    setting = Setting(environment={"GUARANTEE": "at-least-once"})
    with Scenario(AT_LEAST_ONCE, kafka.bootstrap, tmp_path, setting) as scenario:
        for kill in kills(("before-decision",)):
            scenario.kill_at(kill)
        scenario.finish()


@pytest.mark.long
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize(
    "subject",
    [DROP_IN, COUNT, KEYED_COUNTS, WINDOWED, WINDOWED_DROP_IN, TWO_REGIONS],
    ids=lambda subject: subject.name,
)
def test_others_survive_two_kills_in_a_row_at_every_failpoint(
    kafka: EmbeddedKafka, tmp_path: Path, subject: Subject, chain: str
) -> None:
    absent = DROP_IN_ABSENT if subject in (DROP_IN, WINDOWED_DROP_IN) else frozenset()
    names = [name for name in CHAINS[chain] if name not in absent]
    survive(subject, kafka, tmp_path, [kill for name in names for kill in _twice(subject, name)])


def _twice(subject: Subject, name: str) -> list[Kill]:
    """Batches mostly close one window, which is one transaction: several come after a start."""
    is_first = name == "mid-commit" and subject in (WINDOWED, WINDOWED_DROP_IN)
    return twice(name, hit=1 if is_first else 2)
