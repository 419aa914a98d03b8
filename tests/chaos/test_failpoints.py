"""Killed at every named place, once and twice in a row: nothing lost, doubled or out of order.

Real processes on a real broker; a read_committed reader runs all along and must have seen a prefix.
Proves design steps 1 to 8, before and after each (protocol rules 1, 3, 4, 5, 6, 7, 8, 11 and 12).
"""

import re
from pathlib import Path

import pytest

from connectors.kafka.embedded import EmbeddedKafka
from runtime.checkpoint.failpoints import FAILPOINTS
from tests.chaos.beds import CHAINS, DROP_IN_ABSENT, REPAIR, RETRIES, TELLING, kills, twice
from tests.chaos.programs import (
    AT_LEAST_ONCE,
    COPY,
    COUNT,
    DROP_IN,
    TWO_REGIONS,
    WINDOWED,
    WINDOWED_DROP_IN,
    Subject,
)
from tests.chaos.scenario import Kill, Scenario, Setting

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

_ROOT = Path(__file__).parents[2]
EVERY = tuple(name for chain in CHAINS.values() for name in chain)


def survive(subject: Subject, kafka: EmbeddedKafka, directory: Path, kills: list[Kill]) -> None:
    """Start and be killed, once for each kill; then run to the end and be judged."""
    with Scenario(subject, kafka.bootstrap, directory) as scenario:
        for kill in kills:
            scenario.kill_at(kill)
        scenario.finish()


def test_every_failpoint_of_the_source_is_killed_here() -> None:
    """A new failpoint without a kill test fails this one."""
    literal = re.compile(r'(?:failpoint\(|yield )"([a-z-]+)"')
    files = [*(_ROOT / "runtime").rglob("*.py"), *(_ROOT / "connectors").rglob("*.py")]
    named = {name for file in files for name in literal.findall(file.read_text("utf-8"))}
    assert {*named, *FAILPOINTS} - set(EVERY) <= {*REPAIR, *RETRIES}


@pytest.mark.parametrize("chain", CHAINS)
def test_copy_survives_a_kill_at_every_failpoint(
    kafka: EmbeddedKafka, tmp_path: Path, chain: str
) -> None:
    survive(COPY, kafka, tmp_path, kills(CHAINS[chain]))


def test_copy_survives_kills_in_a_row(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """The recovery is killed at the same place as the run it recovers."""
    survive(COPY, kafka, tmp_path, [*twice("after-decision"), *twice("mid-commit")])


@pytest.mark.parametrize("subject", [DROP_IN, COUNT, TWO_REGIONS], ids=lambda subject: subject.name)
def test_others_survive_a_kill_where_the_truth_changes_hands(
    kafka: EmbeddedKafka, tmp_path: Path, subject: Subject
) -> None:
    survive(subject, kafka, tmp_path, kills(TELLING))


@pytest.mark.parametrize("subject", [WINDOWED, WINDOWED_DROP_IN], ids=lambda one: one.name)
def test_windows_survive_kills_around_the_decision(
    kafka: EmbeddedKafka, tmp_path: Path, subject: Subject
) -> None:
    """Batches without records close windows: they must not be taken for a replay (rule 8)."""
    survive(subject, kafka, tmp_path, kills(("before-decision", "after-decision"), hit=3))


def test_at_least_once_loses_nothing(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Killed while it writes and before it decides, it writes again what may be there already."""
    setting = Setting(environment={"GUARANTEE": "at-least-once"})
    with Scenario(AT_LEAST_ONCE, kafka.bootstrap, tmp_path, setting) as scenario:
        for kill in kills(("mid-write", "before-decision")):
            scenario.kill_at(kill)
        scenario.finish()


@pytest.mark.long
@pytest.mark.parametrize("failpoint", EVERY)
def test_copy_survives_two_kills_in_a_row_at_every_failpoint(
    kafka: EmbeddedKafka, tmp_path: Path, failpoint: str
) -> None:
    survive(COPY, kafka, tmp_path, twice(failpoint))


@pytest.mark.long
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize(
    "subject",
    [DROP_IN, COUNT, WINDOWED, WINDOWED_DROP_IN, TWO_REGIONS],
    ids=lambda subject: subject.name,
)
def test_others_survive_two_kills_in_a_row_at_every_failpoint(
    kafka: EmbeddedKafka, tmp_path: Path, subject: Subject, chain: str
) -> None:
    absent = DROP_IN_ABSENT if subject in (DROP_IN, WINDOWED_DROP_IN) else frozenset()
    names = [name for name in CHAINS[chain] if name not in absent]
    survive(subject, kafka, tmp_path, [kill for name in names for kill in twice(name)])
