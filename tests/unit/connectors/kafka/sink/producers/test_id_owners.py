"""Rule `ids-never-reused` beyond the end of a process: whose ids a later one may take over."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.connectors.kafka.sink.producers import id_owners
from sluice.connectors.kafka.sink.producers.id_owners import NewOwner, OwnerFile, take_owner
from sluice.connectors.kafka.sink.producers.producer_pool import ProducerPool
from sluice.connectors.kafka.sink.producers.producer_slots import KeptSlot, SlotState
from sluice.runtime.errors import StorageError
from tests.kit.kafka.producer_pools import scope

PLACE = ("prefix", "job", "region", "sink")
PROGRAM = """
import sys, time
from pathlib import Path
from sluice.connectors.kafka.sink.producers.id_owners import take_owner
from sluice.connectors.kafka.sink.producers.producer_slots import KeptSlot, SlotState
owner = take_owner(sys.argv[2:], 3, base=Path(sys.argv[1]))
for number, state in enumerate(SlotState):
    owner.keep(number, KeptSlot(state=state, batch_id=number, checkpoint_id=10 + number))
print(owner.name, flush=True)
time.sleep(300)  # until it is killed
"""


def kept(state: SlotState, number: int = 1) -> KeptSlot:
    return KeptSlot(state=state, batch_id=number, checkpoint_id=number)


def owner_of(base: Path, attempt_id: int = 3) -> OwnerFile:
    found = take_owner(PLACE, attempt_id, base=base)
    assert isinstance(found, OwnerFile)
    return found


def end(owner: OwnerFile) -> None:
    """As the kernel does behind the last thread of a process."""
    os.close(owner._descriptor)  # noqa: SLF001


def test_ids_never_reused_ids_of_a_process_pass_on_when_the_kernel_has_ended_it(
    tmp_path: Path,
) -> None:
    """Not while it lives, and not while it is stopped; then those without a transaction and without
    an unanswered request, and a pre-committed one when its checkpoint is committed on record."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path), *PLACE], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert owner_of(tmp_path).name != name
        process.send_signal(signal.SIGSTOP)
        assert owner_of(tmp_path).name != name
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]
    found = owner_of(tmp_path)
    assert found.name == name
    for number, (state, slot) in enumerate(zip(SlotState, found.kept, strict=True)):
        is_usable = state in (SlotState.FREE, SlotState.READY)
        then = SlotState.FREE if is_usable else SlotState.RETIRED
        assert slot.state is (SlotState.SPENT if state is SlotState.SPENT else then), state
        assert (slot.batch_id, slot.checkpoint_id) == (number, 10 + number)
    assert owner_of(tmp_path).name != name, "one process at a time"


def test_an_inherited_transaction_takes_no_id_from_the_later_process(tmp_path: Path) -> None:
    """Else three workers that end behind a pre-commit would leave the fourth without any id."""
    first = owner_of(tmp_path)
    for number in range(5):
        first.keep(number, kept(SlotState.SPENT))
    end(first)
    pool = ProducerPool(
        prefix="p",
        scope=scope(),
        prepare=lambda _: pytest.fail("not asked"),
        background=lambda _: None,
        owner=owner_of(tmp_path),
    )
    assert len(pool) == 5
    pool.enter(scope(batch_id=1))
    assert len(pool) == 6, "its own one"
    pool.enter(scope(batch_id=2, checkpoint_id=2, committed_through=1))
    assert len(pool) == 6


def test_an_owner_of_another_attempt_or_with_few_ids_left_is_not_taken_over(
    tmp_path: Path,
) -> None:
    """Files of earlier attempts are removed; those of later ones are not this attempt's."""
    early, late, worn = owner_of(tmp_path, 2), owner_of(tmp_path, 4), owner_of(tmp_path)
    for number in range(17):
        worn.keep(number, kept(SlotState.OPEN))
    for owner in (early, late, worn):
        end(owner)
    now = owner_of(tmp_path)
    assert now.name not in (early.name, late.name, worn.name)
    (folder,) = next(tmp_path.iterdir()).iterdir()
    assert {path.name for path in folder.iterdir()} == {f"3.{now.name}", f"4.{late.name}"}
    now.release()
    assert {path.name for path in folder.iterdir()} == {f"4.{late.name}"}
    now.keep(0, kept(SlotState.READY))  # a thread of the closed pool: nothing is written


def test_ids_never_reused_a_state_that_cannot_be_written_is_never_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file goes; if it does not, the request is not sent."""
    first, second = owner_of(tmp_path), owner_of(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(os, "pwrite", refuse)
    first.keep(0, kept(SlotState.OPEN))
    monkeypatch.setattr(Path, "unlink", refuse)
    for _ in range(2):  # the task is repeated in this process
        with pytest.raises(StorageError, match="no room"):
            second.keep(0, kept(SlotState.OPEN))
    second.keep(0, kept(SlotState.READY))  # the state in the file spares the id anyway
    monkeypatch.undo()
    end(first)
    assert owner_of(tmp_path).name != first.name


def test_ids_never_reused_an_id_whose_state_cannot_be_kept_is_not_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task reports it, and the pool does not wait for an id that nothing prepares."""
    first = owner_of(tmp_path)
    pool = ProducerPool(
        prefix="p",
        scope=scope(),
        prepare=lambda _: pytest.fail("not asked"),
        background=lambda _: pytest.fail("not started"),
        owner=first,
    )

    def refuse(*_: object, **__: object) -> None:
        raise OSError("read-only file system")

    monkeypatch.setattr(os, "pwrite", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    for _ in range(2):
        with pytest.raises(StorageError, match="read-only"):
            pool.enter(scope())
    monkeypatch.undo()
    end(first)
    assert owner_of(tmp_path).name == first.name, "no id was used"


def test_a_file_that_was_renamed_meanwhile_has_no_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS does that with a removed file that another process has open: its pool may still run."""
    first = owner_of(tmp_path)
    end(first)
    opened, (folder,) = os.open, next(tmp_path.iterdir()).iterdir()

    def open_then_rename(path: Path, *args: int) -> int:
        descriptor = opened(path, *args)
        if path.name.endswith(first.name):
            path.rename(folder / ".nfs0001")
        return descriptor

    monkeypatch.setattr(os, "open", open_then_rename)
    assert owner_of(tmp_path).name != first.name


def test_ids_never_reused_a_copy_of_a_living_owners_file_is_not_taken_over(tmp_path: Path) -> None:
    """As an image has it that was made of a running container."""
    (tmp_path / "a").mkdir()
    original = owner_of(tmp_path / "a")
    original.keep(0, kept(SlotState.READY))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copy = owner_of(tmp_path / "b")
    assert copy.name != original.name
    assert not copy.kept


@pytest.mark.parametrize("fault", ["open to others", "no boot id"])
def test_where_no_owner_can_be_kept_ids_are_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """As in a directory that another user may write, or a system without the boot's id."""
    end(owner_of(tmp_path))
    if fault == "open to others":
        next(tmp_path.iterdir()).chmod(0o770)
    else:
        monkeypatch.setattr(id_owners, "_BOOT", tmp_path / "nothing")
    first, second = (take_owner(PLACE, 3, base=tmp_path) for _ in range(2))
    assert isinstance(first, NewOwner)
    assert first.name != second.name
