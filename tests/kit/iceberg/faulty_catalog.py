"""A SQL catalog whose table commits fail on request, before or after they are done."""

from collections.abc import Callable
from typing import Any, ClassVar

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
)
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import SetPropertiesUpdate

__all__ = ["FaultyCatalog"]


class FaultyCatalog(SqlCatalog):
    """Loaded by the property ``py-catalog-impl``.

    Attributes:
        faults: of the next commits, first one first: ``conflict``, ``unknown-before``,
            ``unknown-after``, ``repeated``, ``away``, ``gone``, ``odd-answer``, ``no-properties``,
            ``ok``.
        beside: called before each commit, for another writer.
        commits: how many commits were tried.
    """

    faults: ClassVar[list[str]] = []
    beside: ClassVar[list[Callable[[], object]]] = []
    commits: ClassVar[int] = 0

    @classmethod
    def reset(cls) -> None:
        """No faults."""
        cls.faults, cls.beside, cls.commits = [], [], 0

    def commit_table(
        self, table: Table, requirements: tuple[Any, ...], updates: tuple[Any, ...]
    ) -> CommitTableResponse:
        cls = type(self)
        cls.commits += 1
        fault = cls.faults.pop(0) if cls.faults else "ok"
        for act in list(cls.beside):
            act()
        if fault == "conflict":
            raise CommitFailedException("another writer was first")
        if fault == "away":
            raise ConnectionError("the catalog is away")
        if fault == "unknown-before":
            raise CommitStateUnknownException("no answer, and nothing happened")
        if fault == "gone":
            raise NoSuchTableError("the table was dropped")
        if fault == "no-properties":
            updates = tuple(one for one in updates if not isinstance(one, SetPropertiesUpdate))
        answer = super().commit_table(table, requirements, updates)
        if fault == "repeated":
            raise CommitFailedException("the request arrived twice, and it happened the first time")
        if fault == "odd-answer":
            raise KeyError("it happened, and the answer has no metadata")
        if fault == "unknown-after":
            raise CommitStateUnknownException("no answer, and it happened")
        return answer
