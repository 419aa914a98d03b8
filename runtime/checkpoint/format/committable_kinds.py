"""Kinds of state entries: who can restore them, and how they are shown to people.

Connectors register theirs by entry points of the group ``sluice.kinds``, each of which names an
`EntryKind` or several; `runtime` never imports them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points

from sluice.runtime.checkpoint.format.metadata import require_known_kinds
from sluice.runtime.errors import ConfigError, StreamError
from sluice.runtime.functions.at_most_once import DROPS_KIND, DROPS_VERSION, decode_drops
from sluice.runtime.functions.operator_state import (
    OPERATOR_LIST_KIND,
    OPERATOR_LIST_VERSION,
    described_list,
)
from sluice.runtime.functions.record_counts import (
    COUNTS_KIND,
    COUNTS_VERSION,
    decode_totals,
    described,
)
from sluice.runtime.model.checkpoint_record import CheckpointRecord, StateEntry

__all__ = ["ENTRY_POINT_GROUP", "EntryKind", "KindRegistry", "installed_kinds"]

ENTRY_POINT_GROUP = "sluice.kinds"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryKind:
    """A kind of state entry that this process knows.

    Attributes:
        kind: as in `sluice.runtime.model.checkpoint_record.StateEntry`.
        latest_version: the latest codec version that it reads.
        describe: returns the entry for people, as JSON values by name; may raise `StreamError`.
        transferred: returns the state of a region, by its name, for a new job that is restored from
            this one. Its checkpoint ids begin at 0 again. Raises `ConfigError` if only the old job
            can have it. None: any job can have it as it is.
    """

    kind: str
    latest_version: int
    describe: Callable[[StateEntry], Mapping[str, object]]
    transferred: Callable[[StateEntry, str], StateEntry] | None = None


class KindRegistry:
    """The kinds that a process knows. Immutable once made."""

    def __init__(self, kinds: Iterable[EntryKind]) -> None:
        self._kinds: dict[str, EntryKind] = {}
        for each in kinds:
            if each.kind in self._kinds:
                raise ConfigError(
                    "two connectors register the same kind of state entry",
                    {"kind": each.kind},
                    "Remove one of them.",
                )
            self._kinds[each.kind] = each

    @property
    def latest_versions(self) -> dict[str, int]:
        """The latest readable version, by kind."""
        return {kind: each.latest_version for kind, each in self._kinds.items()}

    def require_known(self, record: CheckpointRecord) -> None:
        """`require_known_kinds` with the registered kinds."""
        require_known_kinds(record, self.latest_versions)

    def transferred(self, entry: StateEntry, region: str) -> StateEntry:
        """The state of a region for a new job; see `EntryKind`."""
        known = self._kinds.get(entry.kind)
        return (
            entry
            if known is None or known.transferred is None
            else known.transferred(entry, region)
        )

    def describe(self, entry: StateEntry) -> Mapping[str, object] | None:
        """The entry for people; None if its kind or version is unknown."""
        known = self._kinds.get(entry.kind)
        if known is None or entry.version > known.latest_version:
            return None
        try:
            return known.describe(entry)
        except StreamError as error:
            return {"error": str(error)}


_COUNTS = EntryKind(
    kind=COUNTS_KIND,
    latest_version=COUNTS_VERSION,
    describe=lambda entry: described(decode_totals(entry)),
)


_DROPS = EntryKind(
    kind=DROPS_KIND,
    latest_version=DROPS_VERSION,
    describe=lambda entry: asdict(decode_drops(entry)),
)


_LISTS = EntryKind(
    kind=OPERATOR_LIST_KIND, latest_version=OPERATOR_LIST_VERSION, describe=described_list
)


def installed_kinds() -> KindRegistry:
    """The kinds of the runtime and of all installed connectors that can be loaded."""
    found = [_COUNTS, _DROPS, _LISTS]
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            named = point.load()
        except (ImportError, AttributeError):  # its entries are shown undecoded
            continue
        found.extend(named if isinstance(named, tuple) else (named,))
    return KindRegistry(found)
