"""The records of a job's leadership: a chain of numbered files, each created once. Pure.

A renewal is the next record with the session of its predecessor. A takeover is the next record with
another session. So a leader that renews and a standby that takes over compete for one name.
"""

import enum
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sluice.runtime.election.leader_election import Candidate, Leader
from sluice.runtime.errors import StorageError, UnsupportedFormatError
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.model.json_values import from_json, to_json

__all__ = ["LEASE_NAME", "Holding", "LeaseRecord", "lease_name"]

LEASE_NAME = re.compile(r"lease-(\d{12,})")
_FORMAT = 1


class Holding(enum.Enum):
    """Whether the holder of a lease still leads."""

    HELD = "held"
    RELEASED = "released"  # a standby takes over at once
    FINISHED = "finished"  # the same, but the standbys of this job end


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """One link of the chain.

    Attributes:
        number: of the link, from 1; part of the file's name.
        term: of the leadership, from 1; grows with each takeover.
        session_id: leader session id of the holder.
        candidate: the holder.
        duration_s: an observer takes over if no newer record appears for so long by its own clock.
        address: of the holder's coordinator; empty: it is still starting.
        has_node: whether the holder has a node in ZooKeeper, which vanishes with it.
        holding: whether the holder still leads.
    """

    number: int
    term: int
    session_id: str
    candidate: Candidate
    duration_s: float
    address: str = ""
    has_node: bool = False
    holding: Holding = Holding.HELD

    @property
    def leader(self) -> Leader | None:
        """The leader by this record; None: its holder has given up."""
        if self.holding is not Holding.HELD:
            return None
        return Leader(
            session_id=self.session_id,
            term=self.term,
            candidate=self.candidate,
            address=self.address,
        )

    def renewed(self, *, address: str, has_node: bool) -> "LeaseRecord":
        """The next record of the same holder."""
        return replace(self, number=self.number + 1, address=address, has_node=has_node)

    def given_up(self, holding: Holding) -> "LeaseRecord":
        """The last record of the holder."""
        return replace(self, number=self.number + 1, holding=holding)

    def encode(self) -> bytes:
        """The content of its file."""
        return json.dumps({"format_version": _FORMAT, **to_json(self)}).encode()

    @classmethod
    def decode(cls, data: bytes, where: Mapping[str, object]) -> "LeaseRecord":
        """The record in a file.

        Raises:
            UnsupportedFormatError: a later Sluice wrote it.
            StorageError: it is damaged.
        """
        try:
            content: Any = parsed_json(data)
            version = int(content.pop("format_version"))
            if version > _FORMAT:
                raise UnsupportedFormatError(
                    f"the lease record has format version {version}",
                    {**where, "format_version": version, "readable": _FORMAT},
                    "Use the Sluice that runs the job, or a later one.",
                )
            return from_json(cls, content)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as err:
            raise StorageError(
                "a lease record of the election is damaged",
                {**where, "error": repr(err)},
                "Stop all processes of the job, delete this file, and start them again.",
            ) from err


def lease_name(number: int) -> str:
    """The name of a record's file; names sort as numbers do."""
    return f"lease-{number:012d}"
