"""Which files of a state store one version of the state needs. Pure.

Spark's RocksDB state store (checkpoint format 2) writes for each version of a store a changelog,
and for some versions a snapshot. Their names have the version and an id that is unique to the
attempt that wrote them. To load a version, Spark loads the newest snapshot of its lineage, and
applies the changelogs after it. Spark's commit log has the id of each version that belongs to the
lineage::

    state/0/1/12_c9910715-….zip          snapshot of version 12: small files and a list of SST files
              12_c9910715-….changelog    changes from version 11 to 12
              12_….zip.crc               checksums, if Spark writes them
              SSTs/000012-e87061c5-….sst data that several snapshots share
              _metadata/schema           in partition 0
"""

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

__all__ = ["StoreIds", "StoreVersion", "files_in_snapshot", "ids_in_commit", "store_version"]

_FILE = re.compile(r"(?P<version>\d+)_(?P<id>[0-9a-f-]+)\.(?P<kind>zip|changelog)")
_SNAPSHOT, _CHANGELOG = "zip", "changelog"
_CHECKSUM = ".crc"
_LISTS: Mapping[str, tuple[str, str]] = {
    "sstFiles": ("SSTs", "dfsSstFileName"),
    "logFiles": ("logs", "dfsLogFileName"),
}
"""In a snapshot's metadata: the list, the directory of its files, the key of a file's name."""

StoreIds = Mapping[tuple[str, str], frozenset[str]]
"""Ids of the stores of one state version, by operator number and partition number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreVersion:
    """The files of one version of one store.

    Attributes:
        names: all files beside each other, sorted.
        snapshots: those of them that list further files.
    """

    names: tuple[str, ...]
    snapshots: tuple[str, ...]


def ids_in_commit(entry: bytes) -> StoreIds:
    """The ids in one entry of Spark's commit log, which are those of the version after its batch.

    Raises:
        ValueError: the entry has no ids.
    """
    lines = entry.decode().splitlines()
    found = json.loads(lines[1]).get("stateUniqueIds") if len(lines) > 1 else None
    if lines[:1] != ["v2"] or not isinstance(found, dict):
        raise ValueError("the entry has no ids of state stores")
    return {
        (operator, str(partition)): frozenset(ids)
        for operator, partitions in found.items()
        for partition, ids in enumerate(partitions)
    }


def files_in_snapshot(data: bytes) -> list[str]:
    """The files that a snapshot lists, relative to its directory.

    Raises:
        ValueError: it is not a snapshot of Spark.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            lines = archive.read("metadata").decode().splitlines()
        found = json.loads(lines[1])
        return [
            f"{directory}/{each[key]}"
            for name, (directory, key) in _LISTS.items()
            for each in found.get(name) or ()
        ]
    except (zipfile.BadZipFile, LookupError, TypeError) as error:
        raise ValueError(f"the snapshot cannot be read: {error!r}") from error


def store_version(
    names: Iterable[str], version: int, ids_at: Callable[[int], frozenset[str] | None]
) -> StoreVersion | None:
    """The files that Spark needs to load a version of a store; None if some are missing.

    Without the commit log of an old version its id is certain only if the directory has one id of
    that version. Then files of all its ids are taken: more than Spark needs, never less.

    Args:
        names: of the files in the store's directory.
        version: to load; 0 needs none.
        ids_at: the ids of a version in the commit log; None if Spark has deleted that entry.
    """
    present = frozenset(names)
    by_version: dict[int, dict[str, set[str]]] = {}
    for name in present:
        if match := _FILE.fullmatch(name):
            ids = by_version.setdefault(int(match["version"]), {})
            ids.setdefault(match["id"], set()).add(match["kind"])
    taken: list[str] = []
    for number in range(version, 0, -1):
        known = ids_at(number)
        ids = {
            each: kinds
            for each, kinds in by_version.get(number, {}).items()
            if known is None or each in known
        }
        for each, kinds in ids.items():
            kind = _SNAPSHOT if _SNAPSHOT in kinds else _CHANGELOG
            taken.append(f"{number}_{each}.{kind}")
        is_base = any(_SNAPSHOT in kinds for kinds in ids.values())
        if is_base and len(ids) == 1:
            break
        if not ids:
            if not any(name.endswith(_SNAPSHOT) for name in taken):
                return None
            break
    checksums = [name + _CHECKSUM for name in taken if name + _CHECKSUM in present]
    return StoreVersion(
        names=tuple(sorted(taken + checksums)),
        snapshots=tuple(sorted(name for name in taken if name.endswith(_SNAPSHOT))),
    )
