"""Owners of transactional ids, whose names and id states outlive their process on its host.

Spark ends idle Python workers. If each later worker began with new ids, slow triggers would leave
ids at every trigger, and brokers keep an id for ``transactional.id.expiration.ms``, 7 days.

So an owner is a file with a lock. The kernel releases the lock when the last thread of its process
has ended, and then a later process may take the owner over (`ids-never-reused`). It uses only ids
that had neither a transaction nor an unanswered request. The file lies in a directory of this
boot of this host: no other kernel shares the lock, and nothing is read after a crash of the host.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sluice.connectors.kafka.sink.producers.producer_slots import KeptSlot, SlotState
from sluice.runtime.errors import StorageError
from sluice.runtime.process.temporary_files import temporary_dir

__all__ = ["NewOwner", "Owner", "OwnerFile", "draw_name", "take_owner"]

log = logging.getLogger(__name__)

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SLOT = struct.Struct(">cqq15x")  # 32 bytes: none crosses a page, so the kernel writes it whole
_SLOTS = 64
_INODE = struct.Struct(">Q")  # after the slots: a copy of the file has another one
_MOST_RETIRED = 16
_TRIES = 5
_CODES = {SlotState.FREE: b"f", SlotState.READY: b"r", SlotState.SPENT: b"s"}
_UNUSED, _IN_USE = b"\0", b"x"
_AFTER = {b"f": SlotState.FREE, b"r": SlotState.FREE, b"s": SlotState.SPENT}


def draw_name() -> str:
    """A random name, unique among the owners of all processes."""
    return secrets.token_hex(8)


class Owner(Protocol):
    """Owns the ids of one pool. Executor; the pool's lock guards it.

    Attributes:
        name: part of the ids.
        kept: of the ids that an ended process has used under this name, by slot number.
    """

    name: str
    kept: Sequence[KeptSlot]

    def keep(self, number: int, slot: KeptSlot) -> None:
        """Note the state of an id, before its request is sent, and after its answer."""
        ...

    def release(self) -> None:
        """The pool is closed: no process takes these ids over."""
        ...


@dataclass(slots=True)
class NewOwner(Owner):
    """Implements `Owner` for a process that leaves nothing to a later one."""

    name: str = field(default_factory=draw_name)
    kept: Sequence[KeptSlot] = ()

    def keep(self, number: int, slot: KeptSlot) -> None:
        """See `Owner.keep`."""

    def release(self) -> None:
        """See `Owner.release`."""


class OwnerFile(Owner):
    """Implements `Owner` by a locked file. Its process keeps the lock to its end."""

    def __init__(self, path: Path, descriptor: int, kept: Sequence[KeptSlot]) -> None:
        self.name = path.name.partition(".")[2]
        self.kept = kept
        self._path: Path | None = path
        self._descriptor = descriptor

    def keep(self, number: int, slot: KeptSlot) -> None:
        """See `Owner.keep`.

        Raises:
            StorageError: the file can neither be written nor removed, so the id may not be used: a
                later process could read an old state.
        """
        if self._path is None or number >= _SLOTS:
            return
        code = _CODES.get(slot.state, _IN_USE)
        content = _SLOT.pack(code, slot.batch_id, slot.checkpoint_id)
        try:
            os.pwrite(self._descriptor, content, number * _SLOT.size)
        except OSError as err:
            self._remove(self._path, err, is_used=code == _IN_USE)

    def _remove(self, path: Path, error: OSError, *, is_used: bool) -> None:
        log.warning("states of transactional ids are not kept: path=%s error=%s", path, error)
        try:
            path.unlink(missing_ok=True)
        except OSError as err:
            if not is_used:
                return  # the file has an earlier state, in which a later process uses it less
            raise StorageError(
                "the states of transactional ids cannot be written",
                {"path": path, "error": err},
                "Make room in the temporary directory of this host, or check its disk.",
            ) from err
        self._path = None

    def release(self) -> None:
        path, self._path = self._path, None
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()
        os.close(self._descriptor)


def take_owner(place: Sequence[str], attempt_id: int, *, base: Path | None = None) -> Owner:
    """An owner whose process has ended, or a new one.

    Args:
        place: prefix, job, region and sink of the ids.
        attempt_id: of the region; owners of earlier attempts are removed.
        base: directory of the files; None: `temporary_dir`.
    """
    try:
        folder = _folder(base or temporary_dir(), place)
        return _ended(folder, attempt_id) or _new(folder, attempt_id) or NewOwner()
    except OSError as err:  # no boot id, no locks, no such directory
        log.info("states of transactional ids are not kept: error=%s", err)
        return NewOwner()


def _folder(base: Path, place: Sequence[str]) -> Path:
    boot_id = _BOOT.read_text().strip()
    top = base / f"sluice-ids-{os.geteuid()}-{boot_id}"
    base.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        top.mkdir(mode=0o700)
    found = top.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_ours or found.st_mode & 0o077:
        raise PermissionError(f"{top} is not a directory of this user alone")
    folder = top / hashlib.sha256("\0".join(place).encode()).hexdigest()[:32]
    folder.mkdir(exist_ok=True)
    return folder


def _inode_of(descriptor: int) -> bytes:
    return _INODE.pack(os.fstat(descriptor).st_ino)


def _ended(folder: Path, attempt_id: int) -> OwnerFile | None:
    for path in sorted(folder.iterdir()):
        attempt = path.name.partition(".")[0]
        if not attempt.isdecimal() or int(attempt) > attempt_id:
            continue
        descriptor = _locked(path)
        if descriptor is None:
            continue
        kept = _read(descriptor)
        if int(attempt) == attempt_id and kept is not None:
            return OwnerFile(path, descriptor, kept)
        path.unlink(missing_ok=True)
        os.close(descriptor)
    return None


def _new(folder: Path, attempt_id: int) -> OwnerFile | None:
    for _ in range(_TRIES):  # another process may lock the file before this one does
        path = folder / f"{attempt_id}.{draw_name()}"
        path.touch(mode=0o600, exist_ok=False)
        descriptor = _locked(path)
        if descriptor is not None:
            os.pwrite(descriptor, bytes(_SLOTS * _SLOT.size) + _inode_of(descriptor), 0)
            return OwnerFile(path, descriptor, ())
    return None


def _locked(path: Path) -> int | None:
    """A descriptor that holds the lock; None: a living process has it, or the file is gone."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Not removed since it was opened. NFS only renames a file that is open somewhere.
        if os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _read(descriptor: int) -> list[KeptSlot] | None:
    """The slots of an ended owner; None: it is damaged, or has too few ids left.

    Or the file is a copy, as in an image of a container: the process of the original may live.
    """
    slots = _SLOTS * _SLOT.size
    content = os.pread(descriptor, slots + _INODE.size + 1, 0)
    if content[slots:] != _inode_of(descriptor):
        return None
    kept = []
    for code, batch_id, checkpoint_id in _SLOT.iter_unpack(content[:slots]):
        if code == _UNUSED:
            break
        state = _AFTER.get(code, SlotState.RETIRED)
        kept.append(KeptSlot(state=state, batch_id=batch_id, checkpoint_id=checkpoint_id))
    retired = sum(slot.state is SlotState.RETIRED for slot in kept)
    return None if retired > _MOST_RETIRED or len(kept) > _SLOTS // 2 else kept
