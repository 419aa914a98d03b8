"""Unsettled committables of a decision, and those that a person has accepted: small JSON. Pure.

A coordinator that stops because of such work records the digest of each committable. A person
accepts exactly these; committables that no error has named are never accepted with them.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from sluice.runtime.checkpoint.lost_work import digest_of
from sluice.runtime.contracts import AcceptedAs, AcceptedWork, CommitOutcome, UnsettledWork
from sluice.runtime.errors import ConfigError, DamagedCheckpointError, UnsupportedFormatError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.model.json_values import from_json, to_json

__all__ = [
    "accepted_as",
    "accepted_json",
    "claim_of",
    "decode_accepted",
    "decode_unsettled",
    "encode_accepted",
    "encode_unsettled",
    "in_effect",
]

_FORMAT_VERSION = 1
_Work = TypeVar("_Work", UnsettledWork, AcceptedWork)


def in_effect(
    works: Iterable[UnsettledWork], standing: Iterable[StateEntry]
) -> tuple[UnsettledWork, ...]:
    """The works that the decision still names; repairs have replaced the rest since."""
    named = set(map(digest_of, standing))
    return tuple(work for work in works if work.digest in named)


def accepted_as(work: UnsettledWork, unknown_as: AcceptedAs | None) -> AcceptedWork | None:
    """How a start may treat this work; None if its outcome is unknown and no person has decided.

    Args:
        work: a committable that could not be committed.
        unknown_as: a person's decision on work whose outcome the broker does not know.
    """
    said = AcceptedAs.LOST if work.outcome is CommitOutcome.ABORTED else unknown_as
    if said is None:
        return None
    return AcceptedWork(
        digest=work.digest, accepted_as=said, region=work.region, ranges=work.ranges
    )


def claim_of(
    works: Iterable[AcceptedWork],
    standing: Iterable[StateEntry],
    repairs: Iterable[Mapping[bytes, StateEntry]],
    *,
    where: Mapping[str, object],
) -> dict[bytes, StateEntry]:
    """A repair that replaces each accepted lost committable by itself, so no coordinator writes it
    again. Empty if there is nothing to claim.

    Args:
        works: accepted by a person.
        standing: committables of the decision, with every repair applied.
        repairs: of the decision; some may be such claims already.
    Raises:
        ConfigError: a coordinator has written some of them again.
    """
    lost = {work.digest: work for work in works if work.accepted_as is AcceptedAs.LOST}
    named = {digest_of(entry): entry for entry in standing}
    again = [work for digest, work in lost.items() if digest not in named]
    if again:
        raise ConfigError(
            "some lost committables were written again: they must not be accepted",
            {**where, "ranges": " ".join(sorted({each for work in again for each in work.ranges}))},
            "Start the job, or repeat the command if more is lost. Nothing was accepted.",
        )
    claimed = {
        payload
        for replaced in repairs
        for payload, entry in replaced.items()
        if entry.payload == payload
    }
    mine = (entry for digest, entry in named.items() if digest in lost)
    return {entry.payload: entry for entry in mine if entry.payload not in claimed}


def accepted_json(work: AcceptedWork) -> dict[str, Any]:
    """One entry of ``_accepted``; commands also print it."""
    found: dict[str, Any] = to_json(work)
    return {"as": found.pop("accepted_as"), **found}


def encode_unsettled(checkpoint_id: int, works: Iterable[UnsettledWork]) -> bytes:
    """As ``_unsettled``."""
    return _encoded(checkpoint_id, map(to_json, works))


def encode_accepted(checkpoint_id: int, works: Iterable[AcceptedWork]) -> bytes:
    """As ``_accepted``."""
    return _encoded(checkpoint_id, map(accepted_json, works))


def decode_unsettled(
    data: bytes, checkpoint_id: int, *, where: Mapping[str, object]
) -> tuple[UnsettledWork, ...]:
    """Decode the bytes of `encode_unsettled`.

    Raises:
        UnsupportedFormatError: a later Sluice wrote it.
        DamagedCheckpointError: it is something else, or of another checkpoint.
    """
    return _decoded(UnsettledWork, data, checkpoint_id, where)


def decode_accepted(
    data: bytes, checkpoint_id: int, *, where: Mapping[str, object]
) -> dict[str, AcceptedWork]:
    """Decode the bytes of `encode_accepted`, by digest; errors as of `decode_unsettled`."""
    return {each.digest: each for each in _decoded(AcceptedWork, data, checkpoint_id, where)}


def _encoded(checkpoint_id: int, entries: Iterable[object]) -> bytes:
    text = {
        "format_version": _FORMAT_VERSION,
        "checkpoint_id": checkpoint_id,
        "entries": list(entries),
    }
    return json.dumps(text, indent=1).encode()


def _decoded(
    kind: type[_Work], data: bytes, checkpoint_id: int, where: Mapping[str, object]
) -> tuple[_Work, ...]:
    try:
        found: Any = parsed_json(data)
        version = int(found["format_version"])
        if version > _FORMAT_VERSION:
            raise UnsupportedFormatError(
                f"the file has format version {version}",
                {**where, "format_version": version, "readable": _FORMAT_VERSION},
                "Use the version of Sluice that wrote it, or a later one.",
            )
        if version != _FORMAT_VERSION or int(found["checkpoint_id"]) != checkpoint_id:
            raise ValueError("another format, or another checkpoint")
        entries = [dict(each) for each in found["entries"]]
        for each in entries:
            if "as" in each:  # a keyword of Python
                each["accepted_as"] = each.pop("as")
        return tuple(from_json(kind, each) for each in entries)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DamagedCheckpointError(
            "the list of unsettled or accepted committables is damaged",
            where,
            "Read the file; it is small JSON. If you delete it, the next start lists what it "
            "cannot commit, and you can accept that again.",
        ) from error
