"""Opens a savepoint, a full checkpoint, or a checkpoint in a job's directory, to restore from it.

::

    savepoint-1f0c2a9e-42-8be1d0/_metadata            the record; written last
                                 spark/REGION/…       Spark's files, as in the checkpoint directory
                                 state/…              files of keyed state, likewise
    full/chk-000000000042/_metadata                   the record of a full checkpoint
                          spark/REGION/…, state/…     its files; later ones may name them, too
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from sluice.runtime.checkpoint.checkpoint_slots import METADATA, slot_name
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.format.metadata import decode
from sluice.runtime.checkpoint.spark_place import with_spark_files
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.checkpoint_record import (
    CheckpointKind,
    CheckpointRecord,
    RegionRecord,
    Verdict,
)
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.savepoint.spark_files import files_of_batch, location_of
from sluice.runtime.storage.file_system import FileSystem, OpenFileSystem
from sluice.runtime.storage.file_system_opening import absolute_uri, open_file_system

__all__ = [
    "Savepoint",
    "StateFile",
    "no_savepoint",
    "open_savepoint",
    "references_of",
    "savepoint_at",
]

_SLOT = re.compile(r"(?P<parent>.+)/chk-(?P<id>\d{12,})", re.DOTALL)
_SLOT_NAME = re.compile(r"chk-\d{12,}")
_OWN = re.compile(r"chk-\d{12,}/")


class StateFile(NamedTuple):
    """One file that a restore needs."""

    source: str
    """Path in `Savepoint.fs`."""
    path: str
    """Path relative to a checkpoint directory, ``spark/REGION/…`` or ``state/…``."""
    reference: FileReference | None
    """Length and SHA-256; None in a job's own directory, where the record names no files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint:
    """A whole savepoint, full checkpoint or committed checkpoint. Driver or command line.

    Attributes:
        uri: of its directory, with scheme.
        fs: that has its files; rooted at the savepoint, or at the directory with the ``chk-``
            directories.
        record: the content of its ``_metadata``: a decision without open work.
    """

    uri: str
    fs: FileSystem
    record: CheckpointRecord

    def region(self, name: str) -> RegionRecord:
        """The record of a region.

        Raises:
            ConfigError: there is no such region.
        """
        for region in self.record.regions:
            if region.region == name:
                return region
        raise ConfigError(
            "the savepoint has no such region",
            {"uri": self.uri, "region": name, "regions": [r.region for r in self.record.regions]},
            "Choose one of these regions.",
        )

    def state_files(self, region: str) -> list[StateFile]:
        """Spark's files of a region that a restore needs; empty for a region without state.

        The files of a savepoint or full checkpoint may be missing or damaged: see `verify`.

        Raises:
            DamagedCheckpointError: Spark has deleted files of a checkpoint in a job's directory.
        """
        found = self.region(region)
        if found.state is None or found.batch_id is None:
            return []
        if found.state.files:
            return [StateFile(e.path, _OWN.sub("", e.path, count=1), e) for e in found.state.files]
        paths = files_of_batch(self.fs, location_of(found.state), found.batch_id)
        return [StateFile(path, path, None) for path in paths]

    def keyed_files(self) -> list[StateFile]:
        """The files of keyed state, of all regions."""
        files = self.record.keyed_files
        return [StateFile(e.path, _OWN.sub("", e.path, count=1), e) for e in files]


def references_of(record: CheckpointRecord) -> list[FileReference]:
    """All files that a record names."""
    states = (region.state for region in record.regions)
    of_spark = [each for state in states if state is not None for each in state.files]
    return [*of_spark, *record.keyed_files]


def open_savepoint(
    uri: str,
    *,
    jvm: Any = None,  # noqa: ANN401 - py4j's view
    storage_options: Mapping[str, str] | None = None,
) -> Savepoint:
    """See `savepoint_at`; ``jvm`` and ``storage_options`` are as for `open_file_system`."""
    return savepoint_at(
        uri, partial(open_file_system, jvm=jvm, storage_options=storage_options or {})
    )


def savepoint_at(uri: str, open_at: OpenFileSystem) -> Savepoint:
    """Open the directory of a savepoint, a full checkpoint or an ordinary checkpoint.

    Args:
        uri: ``…/savepoint-…``, ``…/full/chk-…`` or ``…/chk-…``; also that of its ``_metadata``.
        open_at: opens a directory.
    Raises:
        ConfigError: the directory holds no complete savepoint, or a checkpoint that is not
            decided, not committed, or left out by a start from an older one.
        DamagedCheckpointError: the record is damaged.
        UnsupportedFormatError: a later version wrote it.
        StorageError, AuthenticationError: the store does not answer, or refuses.
    """
    uri = absolute_uri(uri).removesuffix(f"/{METADATA}")
    match = _SLOT.fullmatch(uri)
    if match is None:
        fs = open_at(uri)
        return Savepoint(uri=uri, fs=fs, record=_savepoint_record(fs))
    fs = with_spark_files(open_at(match["parent"]), open_at)
    return Savepoint(uri=uri, fs=fs, record=_checkpoint_record(fs, int(match["id"]), uri))


def _savepoint_record(fs: FileSystem) -> CheckpointRecord:
    where = {"uri": fs.uri, "path": METADATA}
    data = fs.read(METADATA)
    if data is None:
        raise no_savepoint(fs)
    record = decode(data, where=where)
    if record.verdict is not Verdict.DECIDED:
        raise _incomplete({**where, "reason": record.reason})
    if record.kind is not CheckpointKind.SAVEPOINT or record.committables:
        raise ConfigError(
            "the directory holds another record than that of a savepoint",
            {**where, "kind": record.kind.value, "checkpoint_id": record.checkpoint_id},
            "Give a savepoint's directory, or DIR/chk-… with its original name.",
        )
    return record


def _checkpoint_record(fs: FileSystem, checkpoint_id: int, uri: str) -> CheckpointRecord:
    store = CheckpointStore(fs)
    where: dict[str, object] = {"uri": uri, "checkpoint_id": checkpoint_id}
    record = store.read(checkpoint_id)
    if record is None and not fs.exists(slot_name(checkpoint_id)):
        raise ConfigError(
            "the directory has no checkpoint of this id",
            where,
            "Choose one from 'sluice checkpoint list', or 'sluice savepoint list' for full ones. "
            "Retention deletes old ones.",
        )
    if record is None:
        raise _incomplete({**where, "path": f"{slot_name(checkpoint_id)}/{METADATA}"})
    if record.verdict is not Verdict.DECIDED:
        raise ConfigError(
            "the checkpoint was given up: it has no state to restore",
            {**where, "reason": record.reason},
            "Choose a decided one from 'sluice checkpoint list'.",
        )
    if record.committables and not store.is_committed(checkpoint_id):
        raise ConfigError(
            "the checkpoint is decided, but not committed",
            where,
            "Start its job once: the start commits it. Or choose a committed checkpoint.",
        )
    if store.is_superseded(checkpoint_id):
        raise ConfigError(
            "a start from an older checkpoint has left this one out",
            where,
            "Choose another one from 'sluice checkpoint list'.",
        )
    return record


def no_savepoint(fs: FileSystem) -> ConfigError:
    """The error for a directory without ``_metadata``."""
    where = {"uri": fs.uri}
    if fs.names("", _SLOT_NAME):
        return ConfigError(
            "this is a checkpoint directory, not a savepoint",
            where,
            "Give a savepoint (sluice savepoint list), or a chk-… directory in it.",
        )
    if not fs.exists(""):
        return ConfigError(
            "there is no such directory",
            where,
            "Check the path; 'sluice savepoint list' shows the savepoints in a directory.",
        )
    return _incomplete({**where, "path": METADATA})


def _incomplete(where: Mapping[str, object]) -> ConfigError:
    return ConfigError(
        "the directory holds no complete savepoint: _metadata is missing",
        where,
        "Give a savepoint from 'sluice savepoint list'. One without _metadata was never completed "
        "or is being disposed of.",
    )
