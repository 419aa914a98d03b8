"""What the regions of a simulated job share: operator lists, a repartition topic, a broadcast stream.

Each is played by the epochs that regions have ended, named by region, attempt and batch. A region's
list has a row for each of its epochs. A message in the topic is of such an epoch, and its reader
takes those that the lineage of its run has. The broadcast stream is the state of the first region.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import pyarrow as pa

from sluice.runtime.coordinator.policy.checkpoint_plan import RegionPlan
from sluice.runtime.functions.operator_state import (
    OPERATOR_LIST_KIND,
    decoded,
    encoded,
    state_entry,
)
from sluice.runtime.model.checkpoint_record import (
    CheckpointRecord,
    OperatorNode,
    Redistribution,
    RegionRecord,
    StateEntry,
)
from sluice.runtime.model.splits import Barrier, BatchKey
from sluice.runtime.model.state.batch_lineage import BatchLineage
from sluice.runtime.model.state.keyed_state import KeyedState
from tests.simulation.keyed import Epoch

LIST, RULES = "list", "rules"
"""Operator ids of the function with a list, and of the broadcast stream."""
GRAPH = (
    OperatorNode(operator_id="source", name="source", kind="source", upstream=()),
    OperatorNode(operator_id=LIST, name=LIST, kind="function", upstream=("source",)),
    OperatorNode(operator_id="sink", name="sink", kind="sink", upstream=(LIST,)),
)
_SCHEMA = pa.schema([("region", pa.string()), ("attempt_id", pa.int64()), ("batch_id", pa.int64())])


def sharing(regions: tuple[RegionPlan, ...], *, moves: bool) -> tuple[RegionPlan, ...]:
    """The last region reads what the first one writes, and all read its broadcast stream, unless
    splits of that stream would go to another region."""
    first, *others = (replace(region, list_ids=(LIST,)) for region in regions)
    others[-1] = replace(others[-1], upstream=(first.name,))
    if not moves:
        first = replace(first, broadcast_id=RULES)
        others = [replace(region, reads=(RULES,)) for region in others]
    return (first, *others)


def with_epoch(states: Iterable[StateEntry], batch: BatchKey) -> StateEntry:
    """The list of a region after a batch."""
    rows = [*_rows(states), (batch.region, batch.attempt_id, batch.batch_id)]
    named = [dict(zip(_SCHEMA.names, row, strict=True)) for row in rows]
    payload = encoded(pa.Table.from_pylist(named, schema=_SCHEMA))
    return state_entry(payload, operator_id=LIST, redistribution=Redistribution.SPLIT)


def _rows(states: Iterable[StateEntry]) -> list[Epoch]:
    return [
        (row["region"], row["attempt_id"], row["batch_id"])
        for entry in states
        if entry.kind == OPERATOR_LIST_KIND
        for row in decoded(entry).to_pylist()
    ]


class SharedWatch:
    """The promises about what regions share.

    Attributes:
        rows: of lists, over all decisions.
        left: messages that a reader leaves out after a rewind.
        versions: of the broadcast stream, over all epochs.
    """

    def __init__(self, require: Callable[[object, str], None]) -> None:
        self._require = require
        self._ever: set[Epoch] = set()
        self._states: list[KeyedState | None] = [None]
        self._fixed: dict[tuple[str, int], tuple[object, ...]] = {}
        self.rows = self.left = self.versions = 0

    def decided(self, record: CheckpointRecord, epochs: frozenset[Epoch]) -> None:
        """A decision stands, with these epochs in its past."""
        self.written(epochs)
        self._states += [region.keyed_state for region in record.regions]
        listed = Counter(row for region in record.regions for row in _rows(region.operator_states))
        self.rows += listed.total()
        what = "an operator list lacks an epoch, or has it twice"
        self._require(listed == Counter(epochs), f"{what}: {listed - Counter(epochs)}")

    def written(self, epochs: frozenset[Epoch]) -> None:
        """The topic has the messages of these epochs, and those of epochs before a rewind."""
        self._ever |= epochs

    def started(
        self, lineage: BatchLineage, epochs: frozenset[Epoch], restored: Iterable[RegionRecord]
    ) -> None:
        """A run begins, with these epochs in its past."""
        self._states += [region.keyed_state for region in restored]
        for epoch in self._ever:
            is_read, is_past = lineage.has(*epoch), epoch in epochs
            self.left += not is_read
            self._require(is_read or not is_past, f"a row in flight is lost: {epoch}")
            self._require(is_past or not is_read, f"a row in flight is doubled: {epoch}")

    def begins(self, session: str, barrier: Barrier) -> None:
        """A region's epoch uses these versions of the broadcast stream."""
        found = barrier.broadcasts
        if not found:
            return
        fixed = self._fixed.setdefault((session, barrier.checkpoint_id), found)
        self.versions += 1
        what = "an epoch has two versions of a broadcast stream"
        self._require(fixed == found, f"{what}: {barrier}")
        is_decided = all(version.state in self._states for version in found)
        self._require(is_decided, f"a version of a broadcast stream is of no decision: {barrier}")
