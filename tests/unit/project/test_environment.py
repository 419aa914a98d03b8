"""The chaos bed: its plan, faults, verdicts, report and soak."""

import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.runtime.checker import Payload, Record
from sluice.runtime.errors import ConfigError
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.chaos import programs
from tests.chaos.programs import Topics, exclaim
from tests.chaos.published_files import PublishedFiles
from tests.environment.containers import Container, ContainerSpec
from tests.environment.faults import make_fault
from tests.environment.journal import FaultEntry, RoundEntry, commit_of
from tests.environment.pipeline import SHAPES, BedFailureError, Marks
from tests.environment.plan import (
    BROKERS,
    COORDINATORS,
    KINDS,
    TRANSACTION_TIMEOUT_S,
    ZOOKEEPERS,
    PlannedFault,
    bursts,
    plan,
)
from tests.environment.report import summary, table
from tests.environment.soak import MEASURES, Sample, growth
from tests.environment.verdict import RoundVerdict, judge_all, with_sight
from tests.kit.memory_checker import history_of


def test_a_seed_makes_the_same_faults_again() -> None:
    assert plan(7, 200) == plan(7, 200)
    assert plan(7, 200) != plan(8, 200)


def test_a_shorter_plan_is_the_beginning_of_a_longer_one() -> None:
    """A failure at fault 5 needs no more than 6 of them."""
    assert plan(7, 200)[:6] == plan(7, 6)


def test_every_kind_and_every_target_comes() -> None:
    planned = plan(1, 20_000, may_lapse=True)
    struck = {(fault.kind, fault.target) for fault in planned}
    assert struck == {(name, target) for name, kind in KINDS.items() for target in kind.targets}
    for fault in planned:
        assert KINDS[fault.kind].least_s <= fault.hold_s <= KINDS[fault.kind].most_s
        assert 0 <= fault.draw < 1


def test_a_seed_of_before_there_were_coordinators_makes_its_faults_again() -> None:
    """Rounds in the journal can be run again: what other jobs have does not change a plan."""
    planned = plan(7, 6, without=SHAPES["copy"].without)
    assert [(fault.kind, fault.target, fault.hold_s) for fault in planned] == [
        ("pause", "kafka-3", 2.676),
        ("kill", "kafka-1", 1.718),
        ("failpoint", "driver", 0.0),
        ("kill", "namenode", 4.664),
        ("cut-in", "kafka-1", 2.559),
        ("pause", "kafka-3", 9.993),
    ]


@pytest.mark.parametrize("name", SHAPES)
def test_a_job_gets_faults_of_the_machines_that_it_has(name: str) -> None:
    shape = SHAPES[name]
    planned = plan(1, 3_000, without=shape.without, may_lapse=shape.may_lapse)
    struck = {fault.target for fault in planned}
    assert ("driver" in struck) is not bool(shape.ha)
    assert struck.issuperset(("leader", "coordinator-2", "driver-1")) is bool(shape.ha)
    has_zookeepers = struck.issuperset(("quorum", *ZOOKEEPERS))
    assert has_zookeepers is (shape.ha == "zookeeper")
    assert has_zookeepers or struck.isdisjoint(("quorum", *ZOOKEEPERS))


def test_only_named_kinds_come_and_no_target_that_is_left_out() -> None:
    planned = plan(1, 300, kinds=["kill", "zombie"], without=["driver"])
    assert {fault.kind for fault in planned} == {"kill"}
    assert "driver" not in {fault.target for fault in planned}


def test_nothing_outlasts_transactions_that_live_as_long_as_they_may() -> None:
    planned = plan(1, 3_000)
    assert not any(KINDS[fault.kind].outlasts for fault in planned)
    with pytest.raises(ConfigError, match="no fault is left"):
        plan(1, 1, kinds=["absence"])
    assert all(fault.hold_s > TRANSACTION_TIMEOUT_S + 10 for fault in absences(60))


def absences(count: int) -> Sequence[PlannedFault]:
    return plan(1, count, kinds=["absence"], may_lapse=True)


def test_an_unknown_kind_and_an_empty_choice_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="kinds=kil"):
        plan(1, 1, kinds=["kil"])
    with pytest.raises(ConfigError, match="no fault is left"):
        plan(1, 1, kinds=["zombie"], without=["driver"])


@pytest.mark.parametrize("most", [1, 2, 5])
def test_faults_that_come_together_are_all_there_and_strike_different_machines(most: int) -> None:
    planned = plan(3, 500)
    found = list(bursts(planned, most))
    assert Counter(fault for burst in found for fault in burst) == Counter(planned)
    assert max(len(burst) for burst in found) == most
    for burst in found:
        machines = [name for fault in burst for name in strikes(fault)]
        assert len(set(machines)) == len(machines)
        assert len(burst) == 1 or not any(KINDS[fault.kind].is_alone for fault in burst)


def strikes(fault: PlannedFault) -> Sequence[str]:
    """The machines of a fault."""
    groups = {"quorum": ZOOKEEPERS, "leader": COORDINATORS, "brokers": BROKERS}
    return groups.get(fault.target, (fault.target.partition("/")[0],))


def test_a_brokers_clock_jumps_while_the_others_are_well() -> None:
    """Kafka itself hangs for as long as the jump then."""
    for burst in bursts(plan(4006, 500, kinds=["clock", "cut"]), 6):
        struck = [fault.kind for fault in burst if fault.target in BROKERS]
        assert struck == ["clock"] or "clock" not in struck


def test_faults_that_come_alone_keep_the_order_of_the_plan() -> None:
    planned = plan(3, 50)
    assert [fault for burst in bursts(planned, 1) for fault in burst] == planned


def test_the_first_that_waits_begins_the_next_group() -> None:
    planned = list(plan(3, 200))
    for burst in bursts(planned, 4):
        assert burst[0] == planned[0]
        for fault in burst:
            planned.remove(fault)


_NOBODY = 1 << 30
"""No process has this number: what has it has ended."""


class EngineAtADeath:
    """Its containers have ended, and it has silent that: it says so to those who wait."""

    def __init__(self, *, exit_code: int) -> None:
        self._exit_code = exit_code
        self.commands: list[str] = []

    def address(self, number: int) -> str:
        return f"10.0.0.{number}"

    def run(self, *words: str, check: bool = True) -> str:
        self.commands.append(" ".join(words))
        match words[0]:
            case "wait":
                return str(self._exit_code)
            case "inspect":
                return str(_NOBODY) if "{{.State.Pid}}" in words else "0"
            case _:
                return "done"


@dataclass(kw_only=True)
class Drivers:
    """As much of a `tests.environment.pipeline.Pipeline` as a zombie needs."""

    bed: Any
    active: str = "driver-1"
    standby: str = "driver-2"
    restarts: list[str] = field(default_factory=list)

    @property
    def driver(self) -> Container:
        made: Container = self.bed.containers[self.active]
        return made

    def await_progress(self, *, timeout_s: float, what: str) -> None:
        """There is some at once."""

    def wait(self, done: Any, *, timeout_s: float, what: str) -> None:
        assert done(), what

    def story(self) -> str:
        return ""


def container(name: str, *, exit_code: int, engine: EngineAtADeath | None = None) -> Container:
    given: Any = engine or EngineAtADeath(exit_code=exit_code)
    made = Container(given, ContainerSpec(name=name, image="none", number=1), name)
    made.start()
    return made


def test_an_exit_code_is_what_the_engine_says_of_the_end() -> None:
    """Not of the moment before, in which it takes the container for a running one."""
    assert container("any", exit_code=7).exit_code == 7


def zombie(*, exit_code: int) -> Drivers:
    """The first driver ends so when it continues after the second one's progress."""
    names = ("driver-1", "driver-2")
    containers = {name: container(name, exit_code=exit_code) for name in names}
    drivers: Any = Drivers(bed=SimpleNamespace(containers=containers))
    planned = PlannedFault(kind="zombie", target="driver", after_s=0, hold_s=1, draw=0)
    fault = make_fault(drivers, planned)
    fault.inject()
    fault.heal()
    made: Drivers = drivers
    return made


def test_a_zombie_ends_with_an_error() -> None:
    drivers = zombie(exit_code=1)
    assert drivers.restarts == ["driver-1, fenced, ended with 1"]
    assert drivers.active == "driver-2"


@pytest.mark.parametrize("exit_code", [0, 128 + 9])
def test_a_zombie_that_ends_otherwise_fails_the_round(exit_code: int) -> None:
    with pytest.raises(BedFailureError, match=f"driver-1, fenced, ended with {exit_code}"):
        zombie(exit_code=exit_code)


@dataclass(kw_only=True)
class Coordinators(Drivers):
    """As much of a `tests.environment.led.LedPipeline` as a fault of leaders needs."""

    leaders: list[str] = field(default_factory=lambda: ["coordinator-1"])
    expected_down: set[str] = field(default_factory=set)

    def resolve(self, target: str) -> str:
        """The last one leads for ever; the others for one look."""
        if target != "leader":
            return target
        return self.leaders[0] if len(self.leaders) == 1 else self.leaders.pop(0)

    def wait(self, done: Any, *, timeout_s: float, what: str) -> None:
        assert any(done() for _ in range(3)), what


def led(kind: str, target: str, *, draw: float, exit_code: int, leaders: Sequence[str]) -> Any:
    """A fault of a job with coordinators, from its injection to its end."""
    engine = EngineAtADeath(exit_code=exit_code)
    containers = {
        name: container(name, exit_code=exit_code, engine=engine)
        for name in (*COORDINATORS, *ZOOKEEPERS)
    }
    engine.commands.clear()
    made: Any = Coordinators(bed=SimpleNamespace(containers=containers), leaders=list(leaders))
    planned = PlannedFault(kind=kind, target=target, after_s=0, hold_s=1, draw=draw)
    fault = make_fault(made, planned)
    fault.inject()
    fault.heal()
    told = [line for line in engine.commands if not line.startswith(("wait", "inspect"))]
    return SimpleNamespace(fault=fault, pipeline=made, commands=told)


_TURNS = ("coordinator-1", "coordinator-1", "coordinator-2", "coordinator-2", "coordinator-1")


@pytest.mark.parametrize("draw", [0.2, 0.7], ids=["late", "early"])
def test_leaders_are_frozen_one_after_the_other_and_end_with_errors(draw: float) -> None:
    found = led("depose", "leader", draw=draw, exit_code=1, leaders=_TURNS)
    first, second = "coordinator-1", "coordinator-2"
    froze, woke = f"pause {second}", [f"unpause {first}", f"start {first}"]
    middle = [froze, *woke] if draw < 0.5 else [*woke, froze]
    ends = [f"unpause {second}", f"start {second}"]
    assert found.commands == [f"pause {first}", *middle, *ends]
    assert [line.partition(",")[0] for line in found.pipeline.restarts] == [first, second]
    assert not found.pipeline.expected_down


@pytest.mark.parametrize("exit_code", [0, 128 + 9])
def test_a_deposed_leader_that_ends_otherwise_fails_the_round(exit_code: int) -> None:
    with pytest.raises(BedFailureError, match=f"coordinator-1, deposed, ended with {exit_code}"):
        led("depose", "leader", draw=0.2, exit_code=exit_code, leaders=_TURNS)


def test_a_quorum_is_lost_by_the_loss_of_any_two_servers() -> None:
    lost = set()
    for draw in (0.1, 0.2, 0.4, 0.6, 0.7, 0.9):
        found = led("no-quorum", "quorum", draw=draw, exit_code=1, leaders=_TURNS)
        ways = {"kill --signal KILL": "start", "pause": "unpause"}
        down = [line.rpartition(" ") for line in found.commands[:2]]
        (way,) = {words for words, _, _ in down}
        names = [name for _, _, name in down]
        assert found.commands[2:] == [f"{ways[way]} {name}" for name in names]
        lost.add((way, *names))
    assert len(lost) == 6


def test_the_coordinator_with_the_newest_checkpoint_leads(tmp_path: Path) -> None:
    """Whatever a former one still writes; the driver's own lines count as well."""
    line = "2026-11-29 09:38:13,246 INFO checkpoint committed: checkpoint_id={} kind=checkpoint\n"
    logs = {name: tmp_path / name for name in (*COORDINATORS, "driver-1")}
    logs["coordinator-1"].write_text(line.format(8) + line.format(9) + "checkpoint_id=12\n")
    logs["coordinator-2"].write_text("standby: leader=None\n" + line.format(11))
    logs["driver-1"].write_text("checkpoint=12 completed=a\n")
    marks = Marks(logs)
    marks.refresh()
    assert (marks.count, marks.last) == (4, {"coordinator-1": 9, "coordinator-2": 11})


_SENT = list(
    Payload(topic="in", run="bed", partitions=2, null_value_every=0, empty_value_every=0).records(
        40
    )
)
_FILE, _LATER = "files/part-000000000003-a", "files/part-000000000004-b"

Records = list[Record]


@pytest.fixture
def topics(tmp_path: Path) -> Topics:
    files = PublishedFiles(fs=open_file_system(str(tmp_path)), name="files")
    connection = KafkaConnection(bootstrap_servers="none:1")
    return Topics(connection=connection, source="in", output="out", files=files)


def in_place(records: Sequence[Record]) -> Records:
    """As a topic holds them: each after the last one of its partition."""
    ends: dict[int, int] = {}
    placed = []
    for record in records:
        ends[record.partition] = ends.get(record.partition, -1) + 1
        placed.append(record._replace(offset=ends[record.partition]))
    return placed


def written(topics: Topics, records: Sequence[Record]) -> Records:
    return in_place([copy for record in records for copy in exclaim(topics)(record)])


def rows(topics: Topics, records: Sequence[Record]) -> Records:
    return [copy._replace(headers=()) for record in records for copy in exclaim(topics)(record)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What a round without losses has left: topics in a broker's place, files that lie there."""

    topics: Topics
    held: dict[str, Records]
    directory: Path

    def write(self, *, output: Sequence[Record], files: Mapping[str, Sequence[Record]]) -> None:
        """Into the topic, after one another, and into files, in this order."""
        self.held["out"] = in_place(output)
        for path, records in files.items():
            (self.directory / path).parent.mkdir(exist_ok=True)
            columns = {
                name: [getattr(record, name) for record in records]
                for name in ("key", "value", "partition", "offset")
            }
            pq.write_table(pa.table(columns), self.directory / path)

    def judge(self, *, writes_files: bool = True) -> RoundVerdict:
        return judge_all(self.topics, sent=len(_SENT), writes_files=writes_files)


@pytest.fixture
def left(topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Round:
    """Everything in both outputs; in two files, of two checkpoints."""
    held = {"in": in_place(_SENT)}
    monkeypatch.setattr(programs, "read_records", lambda _, topic: iter(held[topic]))
    monkeypatch.setattr(programs, "read_history", lambda _, topic: history_of(held[topic]))
    made = Round(topics=topics, held=held, directory=tmp_path)
    copies = rows(topics, held["in"])
    made.write(output=written(topics, held["in"]), files={_FILE: copies[:24], _LATER: copies[24:]})
    return made


_BREAKS: list[tuple[str, Callable[[Records], Records]]] = [
    ("lost", lambda good: good[1:]),
    ("doubled", lambda good: [*good, good[0]]),
    ("reordered", lambda good: [good[2], good[1], good[0], *good[3:]]),
    ("foreign", lambda good: [*good, good[0]._replace(value=b"stray")]),
    ("foreign", lambda good: [good[0]._replace(value=b"other"), *good[1:]]),
    ("foreign", lambda good: [good[0]._replace(key=b"other"), *good[1:]]),
]
_BROKEN = pytest.mark.parametrize(
    ("name", "wrong"),
    _BREAKS,
    ids=["lost", "doubled", "reordered", "foreign", "another value", "another key"],
)


@pytest.mark.parametrize("writes_files", [False, True])
def test_a_round_of_which_all_is_there_is_clean(left: Round, writes_files: bool) -> None:
    verdict = left.judge(writes_files=writes_files)
    assert (verdict.faults, verdict.records) == ((), len(_SENT))
    assert verdict.outputs == 1 + writes_files
    assert not any(verdict.counts.values())


@_BROKEN
@pytest.mark.parametrize("writes_files", [False, True])
def test_a_topic_that_is_broken_is_caught(
    left: Round, name: str, wrong: Callable[[Records], Records], writes_files: bool
) -> None:
    """Whether files stand beside it or not; they hold everything."""
    left.held["out"] = in_place(wrong(left.held["out"]))
    verdict = left.judge(writes_files=writes_files)
    assert verdict.faults[0].startswith("topic: ")
    assert not any(fault.startswith("files: ") for fault in verdict.faults)
    assert verdict.counts[name] == 1


@_BROKEN
def test_files_that_are_broken_are_caught(
    left: Round, name: str, wrong: Callable[[Records], Records]
) -> None:
    """The topic beside them holds everything. Rows out of order are found by where they lie."""
    copies = rows(left.topics, left.held["in"])
    left.write(output=left.held["out"], files={_FILE: wrong(copies[:24]), _LATER: copies[24:]})
    verdict = left.judge()
    assert verdict.counts[name] >= 1
    told = "behind" if name == "reordered" else "files: "
    assert any(told in fault for fault in verdict.faults)
    assert not any(fault.startswith("topic: ") for fault in verdict.faults)


def test_files_of_a_later_checkpoint_with_earlier_rows_are_caught(left: Round) -> None:
    copies = rows(left.topics, left.held["in"])
    left.write(output=left.held["out"], files={_FILE: copies[24:], _LATER: copies[:24]})
    verdict = left.judge()
    assert verdict.counts["reordered"] == len(verdict.faults) == 2
    assert all("behind" in fault for fault in verdict.faults)


def test_an_input_that_is_short_of_what_was_sent_is_no_clean_round(left: Round) -> None:
    for sent in (len(_SENT) - 1, len(_SENT) + 1):
        verdict = judge_all(left.topics, sent=sent, writes_files=True)
        assert verdict.faults == (f"{sent} records were sent, {len(_SENT)} are there",)


_CLEAN = RoundVerdict(records=40, outputs=1)


@pytest.mark.parametrize(
    ("wrong", "torn"),
    [
        pytest.param(lambda good: good[1:], 1, id="a record appears behind others"),
        pytest.param(lambda good: [*good[:10], good[0], *good[10:]], 1, id="a double vanishes"),
        pytest.param(lambda good: [good[2], good[1], good[0], *good[3:]], 1, id="order changes"),
        pytest.param(lambda good: [good[0]._replace(value=b"x"), *good[1:]], 1, id="another value"),
        pytest.param(lambda good: [*good, good[0], good[1]], 2, id="more was seen than is there"),
        pytest.param(lambda _: [], 0, id="nothing was seen"),
    ],
)
def test_what_a_reader_saw_must_be_a_prefix(
    topics: Topics, wrong: Callable[[Records], Records], torn: int
) -> None:
    final = written(topics, _SENT)
    verdict = with_sight(_CLEAN, history_of(in_place(wrong(final))), history_of(final))
    assert verdict.faults[0].startswith("a reader: ")
    assert verdict.counts == {"torn": torn}


def test_a_reader_that_saw_a_part_of_each_partition_saw_a_prefix(topics: Topics) -> None:
    final = written(topics, _SENT)
    for seen in (final, final[:7]):
        verdict = with_sight(_CLEAN, history_of(seen), history_of(final))
        assert verdict.faults == ()


_FAULT = FaultEntry(
    seed=1,
    number=0,
    pipeline="copy",
    kind="kill",
    name="kafka-1",
    hold_s=1.0,
    outage_s=4.0,
    checkpoint_s=2.0,
    visible_s=3.0,
    restarts=("driver-1 ended with 1, started again",),
)
_ROUND = RoundEntry(
    seed=1, pipeline="copy", faults=2, planned=2, records=100, outputs=2, elapsed_s=36.0
)


def _row(text: str, kind: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {kind} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_round_that_lost_something_counts_for_nothing_and_is_named() -> None:
    entries = [_FAULT, replace(_ROUND, wrong="lost 1 (e.g. in-0@7)\nmore", lost=1)]
    assert _row(table(entries), "kill")[2] == "0"
    assert "seed 1 (copy) ended after 2 of 2 faults: lost 1 (e.g. in-0@7)" in summary(entries)
    assert "lost 0" not in summary(entries)


@pytest.mark.parametrize("name", ["lost", "doubled", "reordered", "foreign", "torn"])
def test_what_a_round_has_found_is_in_the_sum_over_all(name: str) -> None:
    ended = replace(_ROUND, records=0, wrong="not within 600 s")
    broken = replace(_ROUND, wrong=f"{name} 3", **{name: 3})
    clean, found = summary([_ROUND, ended]), summary([_ROUND, ended, broken])
    counts = "lost 0, doubled 0, reordered 0, foreign 0, torn 0"
    assert f"- rounds judged: 1, 0 of them not clean: {counts}" in clean
    assert (
        f"- rounds judged: 2, 1 of them not clean: {counts}".replace(f"{name} 0", f"{name} 3")
        in found
    )


def test_a_commit_with_changes_beside_it_is_reported_from_the_commit(tmp_path: Path) -> None:
    assert commit_of(tmp_path) is None
    for words in (
        ("init", "--quiet"),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "-ma"),
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    head = commit_of(tmp_path)
    assert head is not None
    (tmp_path / "journal").write_text("line\n", encoding="utf-8")
    assert commit_of(tmp_path, besides=["journal"]) == head
    assert commit_of(tmp_path) == f"{head}+"


def test_faults_without_a_verdict_do_not_count_for_a_later_round() -> None:
    """The bed was killed in the middle; the same seed was then run to its end."""
    killed = [replace(_FAULT, number=number) for number in range(5)]
    again = [_FAULT, replace(_FAULT, number=1), _ROUND]
    assert _row(table([*killed, *again]), "kill")[2] == "2"
    assert _row(table([replace(_FAULT, seed=9), *again]), "kill")[2] == "2"
    assert _row(table([*killed, replace(_ROUND, seed=2)]), "kill")[2] == "0"


_QUIET = Sample(
    at_s=0.0,
    faults=0,
    driver=100,
    driver_mib=600.0,
    driver_files=300,
    driver_threads=120,
    workers_mib=1500.0,
    workers_files=500,
    workers_threads=200,
    ids_per_process=3,
    records=0,
)


def _samples(count: int, change: Callable[[int], dict[str, float]]) -> Sequence[Sample]:
    return [
        replace(_QUIET, at_s=10.0 * number, faults=number // 6, **change(number))  # type: ignore[arg-type]
        for number in range(count)
    ]


def test_what_moves_up_and_down_is_flat() -> None:
    assert not growth(_samples(60, lambda n: {"driver_mib": 600 + 50 * (n % 3)}))
    assert not growth(_samples(60, lambda n: {"driver_mib": min(300 + 40 * n, 700)}))


@pytest.mark.parametrize("name", MEASURES)
def test_a_leak_is_named(name: str) -> None:
    began = getattr(_QUIET, name)
    grown = growth(_samples(120, lambda n: {name: began + n * max(1, began // 100)}))
    assert [line.partition(":")[0] in MEASURES[name].title for line in grown] == [True]


def test_attempts_of_a_driver_are_not_mixed() -> None:
    """A new driver begins small; only the longest life counts."""
    first = _samples(20, lambda n: {"driver_mib": 100.0})
    second = [replace(sample, driver=200) for sample in _samples(60, lambda n: {})]
    assert not growth([*first, *second])


def test_too_little_is_no_verdict() -> None:
    assert "no sample" in growth([])[0]
    assert "too few" in growth(_samples(8, lambda n: {}))[0]
