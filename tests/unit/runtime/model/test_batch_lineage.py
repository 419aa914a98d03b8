"""Which committed batches belong to the past of a run, against a replay of its history."""

from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.state.batch_lineage import BatchLineage, Rewind

Batch = tuple[str, int, int]
REGIONS = ("a", "b", "c")


class History:
    """Runs of a job: each decided checkpoint knows all batches of its past."""

    def __init__(self) -> None:
        self.next_id = 1
        self.past: set[Batch] = set()
        self.committed: set[Batch] = set()
        self.lineage = BatchLineage()
        self.run_attempt_id = 0
        self.regions = {name: RegionRecord(region=name, attempt_id=0) for name in REGIONS[:2]}
        self.saved = [self.state()]

    def state(self) -> tuple[set[Batch], BatchLineage, int, dict[str, RegionRecord]]:
        return set(self.past), self.lineage, self.run_attempt_id, dict(self.regions)

    def write(self, name: str, restart: bool) -> None:
        """A region's next batch is decided; perhaps after a restart of the region."""
        before = self.regions[name]
        attempt_id, batch_id = before.attempt_id, -1 if before.batch_id is None else before.batch_id
        if restart or attempt_id < self.run_attempt_id:
            attempt_id, batch_id = max(self.run_attempt_id, self.next_id), -1
        batch = (name, attempt_id, batch_id + 1)
        self.regions[name] = RegionRecord(region=name, attempt_id=attempt_id, batch_id=batch_id + 1)
        self.past.add(batch)
        self.committed.add(batch)
        self.next_id += 1
        self.saved.append(self.state())

    def start(self, at: int | None, regions: int) -> None:
        """A new run, from an older checkpoint or from the newest, with some regions."""
        if at is not None:
            self.past, self.lineage, self.run_attempt_id, self.regions = self.saved[at]
            self.past = set(self.past)
            self.lineage = self.lineage.after(
                Rewind.to(
                    self.regions.values(),
                    run_attempt_id=self.run_attempt_id,
                    attempt_id=self.next_id,
                )
            )
        self.run_attempt_id = self.next_id
        self.regions = {
            name: self.regions.get(name) or RegionRecord(region=name, attempt_id=self.next_id)
            for name in REGIONS[:regions]
        }
        self.next_id += 1
        self.saved.append(self.state())


@given(st.data())
def test_a_run_sees_exactly_the_batches_of_its_past(data: st.DataObject) -> None:
    """Through region restarts, other numbers of regions, and rewinds to any checkpoint."""
    history = History()
    for _ in range(data.draw(st.integers(1, 25))):
        step = data.draw(st.sampled_from(["write", "write", "write", "start", "rewind"]))
        if step == "write":
            name = data.draw(st.sampled_from(sorted(history.regions)))
            history.write(name, data.draw(st.booleans()))
        else:
            at = data.draw(st.integers(0, len(history.saved) - 1)) if step == "rewind" else None
            history.start(at, data.draw(st.integers(1, 3)))
        lineage = BatchLineage.from_json(history.lineage.to_json())
        assert {b for b in history.committed if lineage.has(*b)} == history.past
