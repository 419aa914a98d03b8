"""The bytes of ``_metadata`` and ``_repair-k``: versioned, self-describing Avro. Pure.

The store does not decode state entries. Each kind belongs to the operator that restores it, and a
start calls `require_known_kinds` first.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from sluice.runtime.checkpoint.format.container import ContainerWriter, read_container
from sluice.runtime.checkpoint.format.keyed_columns import keyed_from_avro, keyed_to_avro
from sluice.runtime.checkpoint.format.schema import (
    METADATA_V1,
    METADATA_VERSION,
    REPAIR_V1,
    REPAIR_VERSION,
)
from sluice.runtime.errors import ConfigError, DamagedCheckpointError, UnsupportedFormatError
from sluice.runtime.model.checkpoint_record import (
    Assignment,
    CheckpointRecord,
    StateEntry,
)
from sluice.runtime.model.json_text import well_formed
from sluice.runtime.model.json_values import UnknownMemberError, from_json, to_json
from sluice.runtime.model.splits import SplitKey

__all__ = [
    "Repair",
    "by_topic",
    "decode",
    "decode_repair",
    "encode",
    "encode_repair",
    "require_known_kinds",
]

_T = TypeVar("_T")
_Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """The content of ``_repair-k`` (`two-phase-repair`).

    Attributes:
        checkpoint_id: the decided checkpoint whose committables were lost.
        number: k; from 1, dense.
        leader_session_id: of the coordinator that repaired.
        replaced: (payload of the lost committable, its replacement), sorted.
    """

    checkpoint_id: int
    number: int
    leader_session_id: str
    replaced: tuple[tuple[bytes, StateEntry], ...]


_plain = partial(to_json, keep_bytes=True)
_METADATA = ContainerWriter(METADATA_V1, format_version=METADATA_VERSION)
_REPAIR = ContainerWriter(REPAIR_V1, format_version=REPAIR_VERSION)


def encode(record: CheckpointRecord) -> bytes:
    """Bytes of ``_metadata``; equal records give equal bytes."""
    bare = tuple(replace(region, keyed_state=None) for region in record.regions)
    plain = {
        "format_version": METADATA_VERSION,
        **_plain(replace(record, assignment=None, regions=bare)),
    }
    plain["settings"] = dict(sorted(record.settings.items()))
    plain["reason"] = well_formed(record.reason)  # it may quote an error of a user's function
    if record.assignment is not None:
        plain["assignment"] = _plain_assignment(record.assignment)
    for region, source in zip(plain["regions"], record.regions, strict=True):
        if source.state is not None:
            region["state"]["operators"] = [
                {"number": number, "name": name} for number, name in source.state.operators
            ]
        if source.keyed_state is not None:
            region["keyed_state"] = keyed_to_avro(source.keyed_state)
    return _METADATA.write(plain)


def decode(data: bytes, *, where: Mapping[str, object] | None = None) -> CheckpointRecord:
    """The record in a ``_metadata`` file; ``where`` goes into messages.

    Raises:
        DamagedCheckpointError: truncated, changed, or not ours.
        UnsupportedFormatError: a later format version, or a value this Sluice does not know.
    """
    where = where or {}
    return _built(lambda: _checkpoint(_fields(data, METADATA_VERSION, where)), where)


def encode_repair(repair: Repair) -> bytes:
    """Bytes of ``_repair-k``; equal repairs give equal bytes."""
    plain = {
        "format_version": REPAIR_VERSION,
        "checkpoint_id": repair.checkpoint_id,
        "number": repair.number,
        "leader_session_id": repair.leader_session_id,
        "replaced": [{"lost": lost, "entry": _plain(entry)} for lost, entry in repair.replaced],
    }
    return _REPAIR.write(plain)


def decode_repair(data: bytes, *, where: Mapping[str, object] | None = None) -> Repair:
    """The repair in a ``_repair-k`` file; raises as `decode` does."""
    where = where or {}

    def build() -> Repair:
        found = _fields(data, REPAIR_VERSION, where)
        return Repair(
            checkpoint_id=found["checkpoint_id"],
            number=found["number"],
            leader_session_id=found["leader_session_id"],
            replaced=tuple(
                (each["lost"], from_json(StateEntry, each["entry"])) for each in found["replaced"]
            ),
        )

    return _built(build, where)


def require_known_kinds(record: CheckpointRecord, known: Mapping[str, int]) -> None:
    """Refuse a record with a state entry that this process cannot restore.

    Args:
        record: about to be restored, or committed.
        known: for each kind the latest codec version that can be read.
    Raises:
        UnsupportedFormatError: names the first unknown kind, or the version that is too new.
    """
    for entry in _entries(record):
        latest = known.get(entry.kind)
        if latest is None or entry.version > latest:
            raise UnsupportedFormatError(
                f"a state entry has unknown kind {entry.kind!r} version {entry.version}",
                {
                    "checkpoint_id": record.checkpoint_id,
                    "operator_id": entry.operator_id,
                    "state_name": entry.state_name,
                    "kind": entry.kind,
                    "version": entry.version,
                    "known": ", ".join(f"{kind} <= {known[kind]}" for kind in sorted(known)),
                },
                "Install the connector that wrote the entry, in that version or a later one.",
            )


def _entries(record: CheckpointRecord) -> Iterator[StateEntry]:
    for region in record.regions:
        yield from region.committables
        yield from region.operator_states


def _fields(data: bytes, latest: int, where: Mapping[str, object]) -> dict[str, Any]:
    container = read_container(data, latest=latest, where=where)
    found = dict(container.fields)
    if found.pop("format_version", None) != container.format_version:
        raise _damaged("its two format versions differ", where)
    return found


def _built(build: Callable[[], _T], where: Mapping[str, object]) -> _T:
    """Build a value; a file with a valid checksum and invalid values counts as damaged too."""
    try:
        return build()
    except UnknownMemberError as error:
        raise UnsupportedFormatError(
            f"a checkpoint record has the unknown {error.kind.__name__} {error.value!r}",
            {**where, "value": error.value, "known": ", ".join(each.value for each in error.kind)},
            "Use the version of Sluice that wrote it, or a later one.",
        ) from error
    except (ConfigError, LookupError, TypeError, ValueError) as error:
        raise _damaged(f"its content is invalid: {error}", where) from error


def _damaged(reason: str, where: Mapping[str, object]) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        f"a checkpoint record is damaged: {reason}",
        where,
        "Restore from another checkpoint (sluice checkpoint list), and report this one.",
    )


def _checkpoint(found: _Fields) -> CheckpointRecord:
    for region in found["regions"]:
        if region["state"] is not None:
            operators = region["state"]["operators"]
            region["state"]["operators"] = [(each["number"], each["name"]) for each in operators]
    keyed = [region.pop("keyed_state") for region in found["regions"]]
    record = from_json(CheckpointRecord, {**found, "assignment": None})
    regions = tuple(
        region if state is None else replace(region, keyed_state=keyed_from_avro(state))
        for region, state in zip(record.regions, keyed, strict=True)
    )
    return replace(record, regions=regions, assignment=_assignment(found["assignment"]))


def _plain_assignment(assignment: Assignment) -> _Fields:
    return {
        "version": assignment.version,
        "regions": [
            {
                "region": name,
                "splits": [
                    {"source_id": source_id, "topic": topic, "partitions": partitions}
                    for (source_id, topic), partitions in by_topic(keys).items()
                ],
            }
            for name, keys in sorted(assignment.regions.items())
        ],
    }


def by_topic(splits: Iterable[SplitKey]) -> dict[tuple[str, str], list[int]]:
    """Partitions by source id and topic, all in order."""
    found: dict[tuple[str, str], list[int]] = {}
    for source_id, topic, partition in sorted(splits):
        found.setdefault((source_id, topic), []).append(partition)
    return found


def _assignment(found: _Fields | None) -> Assignment | None:
    if found is None:
        return None
    return Assignment(
        version=found["version"],
        regions={
            region["region"]: frozenset(
                (some["source_id"], some["topic"], partition)
                for some in region["splits"]
                for partition in some["partitions"]
            )
            for region in found["regions"]
        },
    )
