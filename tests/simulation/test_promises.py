"""Every promise that the worlds watch is seen to break: what never fails proves nothing.

Most are broken by a mutation, in whole worlds; the others, of which a world's own rules come first,
by the report to the watch here.
"""

import ast
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from sluice.connectors.hdfs.staging.committables import FileSet, StagedFile, encode_file_set
from sluice.connectors.kafka.sink.handles import TransactionIdentity
from sluice.runtime.contracts import FailureReason
from sluice.runtime.coordinator.core.events import CopyFiles, Progress, RequestEnded
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.model.checkpoint_record import (
    CheckpointKind,
    CheckpointRecord,
    RegionRecord,
    RegionStatus,
    Verdict,
)
from sluice.runtime.model.splits import Barrier, SplitRange
from sluice.runtime.model.state.broadcast_version import BroadcastVersion
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.model.state.keyed_state import KeyedState
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.kafka.transaction_harness import committable
from tests.simulation.continuous_mutations import CONTINUOUS_MUTATIONS
from tests.simulation.copies import Copies
from tests.simulation.file_mutations import FILE_MUTATIONS
from tests.simulation.file_watch import TARGET
from tests.simulation.files import FILES
from tests.simulation.keyed import Named, Section, state_of
from tests.simulation.lineage import Standing
from tests.simulation.mutations import MUTATIONS
from tests.simulation.profile import Profile
from tests.simulation.run_watch import RunWatch
from tests.simulation.shared_mutations import SHARED_MUTATIONS
from tests.simulation.state_mutations import STATE_MUTATIONS
from tests.simulation.watch import ViolationError
from tests.simulation.world import World

_MODULES = sorted(Path(__file__).parent.glob("*.py"))


def _world() -> World:
    return World(0, Profile(files=True, only_files=True))


def _decide(world: World, at: int, *offsets: int) -> FileSet:
    """A decision names a file of these rows of partition 0, and it is staged."""
    name = f"part-00000-{at:036x}-c000.json"
    rows = "".join(f"0-{offset}\n" for offset in offsets).encode()
    file = StagedFile(staged=f"p=0/{name}", final=f"p=0/f{at}.json", length_bytes=len(rows))
    files = FileSet(target=TARGET, staging=f".staged/{at}", rows=len(offsets), files=(file,))
    world.shelf.write(files.staged_path(file), rows)
    entry = encode_file_set(files, operator_id=FILES)
    region = RegionRecord(region="main", attempt_id=0, committables=(entry,))
    split = SplitRange(
        source_id="s",
        topic="input",
        topic_id="t",
        partition=0,
        start_offset=min(offsets),
        end_offset=max(offsets) + 1,
    )
    world.watch.lineages.decided(at, Standing(ends={}, assignment=None))
    world.watch.files.decided(record(at, regions=(region,)), [split])
    return files


def _publish(world: World, files: FileSet, *, staged: str = "") -> None:
    (file,) = files.files
    world.shelf.place(staged or files.staged_path(file), files.final_path(file))


def _another_file() -> None:
    world = _world()
    files = _decide(world, 1, 0)
    world.shelf.write(".staged/of-a-zombie", b"0-0\n")
    _publish(world, files, staged=".staged/of-a-zombie")


def _moved_away() -> None:
    world = _world()
    files = _decide(world, 1, 0)
    world.shelf.place(files.staged_path(files.files[0]), ".staged/elsewhere")


def _in_two_files() -> None:
    world = _world()
    for at in (1, 2):
        _publish(world, _decide(world, at, 0))


def _out_of_order() -> None:
    world = _world()
    _decide(world, 1, 0)
    _publish(world, _decide(world, 2, 1))


def _deleted_unmarked() -> None:
    _world().watch.retires(record(1), is_marked=False)


def _carried_by_nobodys_leave() -> None:
    world = _world()
    skipped = Progress(
        checkpoint_id=1,
        kind=CheckpointKind.CHECKPOINT,
        requested_by="interval",
        state=State.DECIDED,
        skipped={"r0": FailureReason.ERROR},
    )
    RunWatch(world.start_process()).ordered(skipped)


def _no_prefix() -> None:
    world = World(0, Profile())
    world.watch.seen[0] = [0]  # and the broker has nothing
    world.ending.check_readers()


def _nobody_finishes() -> None:
    World(0, Profile()).ending.settle(bound=0)


def _copied(made: CheckpointRecord) -> None:
    """A savepoint of this record is complete; no slot of the store has it."""
    process = World(0, Profile()).start_process()
    process.core = SimpleNamespace(is_over=True)  # type: ignore[assignment]
    copies = Copies(process)
    copies.begin((CopyFiles(checkpoint_id=made.checkpoint_id), made))
    process.world.random.random = lambda: 1.0  # type: ignore[method-assign] # the copy succeeds
    copies.end()


def _of_no_decision() -> None:
    _copied(record(verdict=Verdict.ABORTED))


def _with_open_work() -> None:
    transaction = TransactionIdentity(transactional_id="t", producer_id=1, producer_epoch=0)
    work = (committable(transaction),)
    _copied(record(regions=(RegionRecord(region="r0", attempt_id=0, committables=work),)))


def _without_a_region() -> None:
    skipped = RegionRecord(region="r0", attempt_id=0, status=RegionStatus.SKIPPED, snapshot_id=1)
    _copied(record(regions=(skipped,)))


def _stopped_too_early() -> None:
    process = World(0, Profile()).start_process()
    pending = [SimpleNamespace(checkpoint_id=1, state="decided")]
    status = SimpleNamespace(pending=pending)
    process.core = SimpleNamespace(status=lambda **_: status)  # type: ignore[assignment]
    Copies(process).ordered(RequestEnded())


def _continued_after_the_savepoint() -> None:
    process = World(0, Profile()).start_process()
    status = SimpleNamespace(last_decided=2)
    process.core = SimpleNamespace(status=lambda **_: status)  # type: ignore[assignment]
    Copies(process)._require_last(1)  # noqa: SLF001


_KEYED = ("s", "input", 0)


def _name_state(*sections: Section, end: int, is_whole: bool = True) -> None:
    """A decision of ``end`` records of partition 0 names these sections, in files of their own."""
    world = World(0, Profile(keyed=True, disk=True))
    chain = []
    for number, section in enumerate(sections):
        data = section.encode()
        path = f"state/r0/1-{number}-0.changes"
        world.disk.write(path, data if is_whole else data[:-1])
        sha256 = hashlib.sha256(data).hexdigest()
        file = FileReference(path=path, length_bytes=len(data), sha256=sha256)
        chain.append(Named(section, file, 0, len(data)))
    split = SplitRange(
        source_id="s",
        topic="input",
        topic_id="t",
        partition=0,
        start_offset=0,
        end_offset=end,
    )
    region = RegionRecord(
        region="r0",
        attempt_id=1,
        batch_id=1,
        splits=(split,),
        keyed_state=state_of({_KEYED: tuple(chain)}),
    )
    world.watch.state.decided(record(1, regions=(region,)))


def _of_first_records(first: int, end: int, batch_id: int = 1) -> Section:
    return Section(_KEYED, first, end, (("r0", 1, batch_id),))


def _state_is_torn() -> None:
    _name_state(_of_first_records(0, 3), end=3, is_whole=False)


def _state_of_another_split() -> None:
    _name_state(Section(("s", "input", 1), 0, 3, (("r0", 1, 1),)), end=3)


def _state_with_a_gap() -> None:
    _name_state(_of_first_records(0, 2), _of_first_records(3, 4), end=4)


def _state_too_old() -> None:
    _name_state(_of_first_records(0, 2), end=3)


def _undecided_state() -> None:
    _name_state(_of_first_records(0, 2, batch_id=7), end=2)


def _undecided_version() -> None:
    version = BroadcastVersion(operator_id="rules", state=KeyedState())
    barrier = Barrier(checkpoint_id=1, region="r1", attempt_id=0, splits=(), broadcasts=(version,))
    _world().watch.shared.begins("s", barrier)


_BROKEN: Mapping[str, Callable[[], None]] = {
    "another file than the decided one is visible": _another_file,
    "a decided file is moved away": _moved_away,
    "a row is in two files": _in_two_files,
    "files are published out of order": _out_of_order,
    "a decision is deleted that is not committed on record": _deleted_unmarked,
    "skipped by a global handler": _carried_by_nobodys_leave,
    "partition 0 is not a prefix": _no_prefix,
    "a transaction stays open, or nobody finishes": _nobody_finishes,
    "a decision names a state file that is not whole": _state_is_torn,
    "a split has another's state": _state_of_another_split,
    "a decision names state with a gap or twice": _state_with_a_gap,
    "a decision names state of another place than its offsets": _state_too_old,
    "a decision names state of no decision": _undecided_state,
    "a version of a broadcast stream is of no decision": _undecided_version,
    "a savepoint of what is not decided": _of_no_decision,
    "a savepoint with open work": _with_open_work,
    "a savepoint skips a region in service": _without_a_region,
    "a stop leaves a decision open": _stopped_too_early,
    "records are decided after the savepoint of a stop": _continued_after_the_savepoint,
}


@pytest.mark.parametrize("what", _BROKEN)
def test_a_broken_promise_is_seen(what: str) -> None:
    with pytest.raises(ViolationError) as raised:
        _BROKEN[what]()
    assert raised.value.what == what


def test_a_promise_that_is_kept_is_none() -> None:
    _name_state(_of_first_records(0, 2), _of_first_records(2, 4), end=4)
    world = _world()
    for at in (1, 2):
        _publish(world, _decide(world, at, at - 1))
        world.watch.files.marked(at)
    assert world.watch.files.published == 2


def _promises(module: Path) -> Iterator[str]:
    for function in ast.walk(ast.parse(module.read_text("utf-8"))):
        if not isinstance(function, ast.FunctionDef):
            continue
        known = {
            node.targets[0].id: node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and len(node.args) == 2 and _is_require(node.func):
                yield _begin_of(node.args[1], known)


def _is_require(called: ast.expr) -> bool:
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in ("require", "_require")


def _begin_of(said: ast.expr, known: Mapping[str, ast.expr]) -> str:
    text = ""
    for part in said.values if isinstance(said, ast.JoinedStr) else [said]:
        value = part.value if isinstance(part, ast.FormattedValue) else part
        if isinstance(value, ast.Name) and value.id in known:
            text += _begin_of(known[value.id], known)
        elif isinstance(value, ast.Constant):
            text += str(value.value)
        else:
            break
    return text.partition(":")[0]


def test_every_promise_is_broken_by_a_mutation_or_here() -> None:
    """One that is added has a proof that the worlds, or at least the watch, would notice."""
    found = {text for module in _MODULES for text in _promises(module)}
    assert len(found) > 50
    assert "" not in found
    mutations = (*MUTATIONS.values(), *FILE_MUTATIONS.values(), *CONTINUOUS_MUTATIONS.values())
    mutations += (*STATE_MUTATIONS.values(), *SHARED_MUTATIONS.values())
    broken = {*_BROKEN, *(what for _, _, what in mutations)}
    # Worlds whose regions write files alone break it: `test_files`.
    broken.add("not every row is in a file in the end")
    assert [text for text in sorted(found) if not _is_one_of(text, broken)] == []


def _is_one_of(begin: str, whole: Iterable[str]) -> bool:
    return any(text.startswith(begin) for text in whole)
