"""What must hold of keyed state, judged at each decision and each deletion."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sluice.runtime.errors import StorageError
from sluice.runtime.model.checkpoint_record import CheckpointRecord, RegionStatus, Verdict
from sluice.runtime.model.splits import SplitKey, SplitRange
from tests.simulation.keyed import Chains, Epoch, chains_of

if TYPE_CHECKING:
    from tests.simulation.world import World


class StateWatch:
    """The promises about keyed state.

    Attributes:
        decisions: splits with state of some records, over all decisions.
        merged: the same, whose state has a merged file.
        moved: the same, in another region than in the decision before.
        deleted: files.
        epochs: region, attempt and batch of all that the newest decision has in its past.
    """

    def __init__(self, world: "World", require: Callable[[object, str], None]) -> None:
        self._world = world
        self._require = require
        self.epochs: frozenset[Epoch] = frozenset()
        self._after: dict[int, frozenset[Epoch]] = {}
        self._region_of: dict[SplitKey, str] = {}
        self.decisions = self.merged = self.moved = self.deleted = 0

    def decided(self, record: CheckpointRecord) -> None:
        """A decision stands: what it names is whole, of decided epochs, and of its offsets."""
        self.epochs |= {
            (region.region, region.attempt_id, region.batch_id)
            for region in record.regions
            if region.status is RegionStatus.COMPLETED and region.batch_id is not None
        }
        self._after[record.checkpoint_id] = self.epochs
        for region in record.regions:
            if region.keyed_state is None:
                continue
            try:
                chains = chains_of(self._world, region.keyed_state)
            except StorageError as err:
                self._require(False, f"a decision names a state file that is not whole: {err}")
                return
            for split in region.splits:
                self._check(split, chains)
                before = self._region_of.get(split.key, region.region)
                self.moved += before != region.region
                self._region_of[split.key] = region.region

    def _check(self, split: SplitRange, chains: Chains) -> None:
        at = 0
        self.merged += any(n.file.path.endswith(".merged") for n in chains.get(split.key, ()))
        for named in chains.get(split.key, ()):
            section = named.section
            self._require(section.split == split.key, f"a split has another's state: {section}")
            is_next = section.first == at
            self._require(is_next, f"a decision names state with a gap or twice: {split} {chains}")
            undecided = set(section.epochs) - self.epochs
            self._require(not undecided, f"a decision names state of no decision: {undecided}")
            at = section.end
        self.decisions += at > 0
        what = "a decision names state of another place than its offsets"
        self._require(at == split.end_offset, f"{what}: {split}, to {at}")

    def goes_back(self, to: int) -> None:
        """A run continues from an older decision: what was decided after it is over."""
        self.epochs = self._after[to]

    def deletes(self, path: str) -> None:
        """Somebody deletes a file of state."""
        self.deleted += 1
        is_named = any(path == file.path for r in self._standing() for file in _files_of(r))
        self._require(not is_named, f"a state file is deleted that a record names: {path}")

    def _standing(self) -> Iterator[CheckpointRecord]:
        for path, data in self._world.disk.files.items():
            if path.endswith("/_metadata"):
                record = self._world.disk.record_in(data, {})
                if record.verdict is Verdict.DECIDED:
                    yield record


def _files_of(record: CheckpointRecord) -> Iterator[object]:
    for region in record.regions:
        if region.keyed_state is not None:
            yield from region.keyed_state.files
