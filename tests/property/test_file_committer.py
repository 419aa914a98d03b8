"""Rule `rename-settled` under crashes, lost answers and late renames: each decided file is there
once, whole."""

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.connectors.hdfs.committing.file_committer import FileCommitter
from sluice.connectors.hdfs.staging.committables import FileSet, StagedFile, encode_file_set
from sluice.runtime.contracts import CommitOutcome
from sluice.runtime.model.checkpoint_record import StateEntry
from tests.kit.effort import examples
from tests.kit.files.fake_file_system import Disk, FakeFileSystem, Fault, SimulatedCrashError

_PARENT = "fake:///data"
_faults = st.lists(st.sampled_from([Fault.NONE, Fault.NONE, *Fault]), max_size=12)


def _staged(disk: Disk, number: int, files: int) -> StateEntry:
    staging = f".staging/attempt-{number}"
    named = [
        StagedFile(staged=f"s{n}", final=f"dt={n % 2}/part-{number}-{n}", length_bytes=n + 1)
        for n in range(files)
    ]
    found = FileSet(target=f"{_PARENT}/orders", staging=staging, rows=files, files=tuple(named))
    for file in named:
        disk.files[found.staged_path(file)] = bytes(file.length_bytes)
    disk.files[f"{staging}/._SUCCESS.crc"] = b"x"
    return encode_file_set(found, operator_id="op")


@settings(max_examples=examples(300), deadline=None)
@given(
    files=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    runs=st.lists(st.tuples(_faults, st.booleans()), max_size=4),
    abandoned=st.integers(0, 2),
    is_staged_verified=st.booleans(),
)
def test_rename_settled_decided_files_are_published_once_and_others_never(
    files: list[int],
    runs: list[tuple[list[Fault], bool]],
    abandoned: int,
    *,
    is_staged_verified: bool,
) -> None:
    """Rule `rename-settled`: however often committers die, are refused or are not answered.

    No answer is ever wrong: COMMITTED means every file is there with its content. Once nothing
    fails any more the target holds exactly the decided files, and staging nothing of theirs.
    """
    disk = Disk()
    decided = [_staged(disk, number, count) for number, count in enumerate(files)]
    undecided = [_staged(disk, 100 + number, 1) for number in range(abandoned)]
    wanted = {
        f"orders/dt={n % 2}/part-{number}-{n}": bytes(n + 1)
        for number, count in enumerate(files)
        for n in range(count)
    }
    for faults, after_crash in runs:
        _run(
            disk,
            decided,
            iter(faults),
            after_crash=after_crash,
            is_staged_verified=is_staged_verified,
        )
        disk.land_late_steps()
        _look(disk, wanted)
    _run(disk, decided, iter(()), after_crash=True, final=True)
    assert {path: data for path, data in disk.files.items() if path.startswith("orders/")} == wanted
    committer = FileCommitter(lambda uri: FakeFileSystem(disk, uri=uri), at_once=1)
    reports = committer.abort(undecided, timeout_s=1)
    assert {report.outcome for report in reports} <= {CommitOutcome.ABORTED}
    assert set(disk.files) == set(wanted)


def _run(
    disk: Disk,
    decided: list[StateEntry],
    faults: Iterator[Fault],
    *,
    after_crash: bool,
    is_staged_verified: bool = True,
    final: bool = False,
) -> None:
    """One committer that tries until it dies, or has no faults left."""

    def opened(uri: str) -> FakeFileSystem:
        return FakeFileSystem(disk, uri=uri, fault=lambda _: next(faults, Fault.NONE))

    # One at a time, so that a seed replays.
    committer = FileCommitter(opened, at_once=1, is_staged_verified=is_staged_verified)
    try:
        reports = committer.commit(decided, timeout_s=60, after_crash=after_crash)
    except SimulatedCrashError:
        return
    finally:
        committer.close()
    if final:
        assert {report.outcome for report in reports} == {CommitOutcome.COMMITTED}
    assert all(report.outcome is not CommitOutcome.UNKNOWN for report in reports)


def _look(disk: Disk, wanted: dict[str, bytes]) -> None:
    for path, data in disk.files.items():
        if path.startswith("orders/"):
            assert wanted[path] == data
