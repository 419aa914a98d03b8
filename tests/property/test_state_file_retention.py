"""Files of keyed state over many runs: each record has its files, and no other file stays."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.runtime.checkpoint.retained_states import KeptStates, left_by_attempts_before
from sluice.runtime.coordinator.core.events import Retire
from sluice.runtime.model.checkpoint_record import FENCING, RegionRecord, Verdict
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.model.state.keyed_state import KeyedState
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.coordinator.run_io_executor import hands_of


class _World:
    """A job whose regions write changes and merge them, and whose runs die at any step."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.store = FakeStore(records={0: record(0, regions=())}, committed={0})
        self.chains: dict[str, list[str]] = {"r0": [], "r1": []}
        self.serial = 0
        self.start()

    def start(self, *, is_last: bool = False) -> None:
        """Another run: it fences, resumes from any record, and sweeps; it may die there."""
        decided = [each for each in self.store.records.values() if each.verdict is Verdict.DECIDED]
        usable = self.random.choice([decided[-1], *decided[-2:]])
        self.attempt_id = max(self.store.records) + 1
        self.session = f"run-{self.attempt_id}"
        self.store.records[self.attempt_id] = record(
            self.attempt_id,
            verdict=Verdict.ABORTED,
            leader_session_id=self.session,
            requested_by=FENCING,
            restored_from=usable.checkpoint_id,
            regions=(),
        )
        for each in decided:
            if each.checkpoint_id > usable.checkpoint_id:
                self.store.superseded[each.checkpoint_id] = self.attempt_id
        self.store.require_files(usable, whole=True)
        self.kept = KeptStates.read(self.store)
        for name in self.chains:
            found = [each for each in usable.regions if each.region == name]
            state = found[0].keyed_state if found else None
            self.chains[name] = [] if state is None else [file.path for file in state.files]
        left = [
            path
            for path in self.store.state_files()
            if left_by_attempts_before(path, self.attempt_id) and not self.kept.is_named(path)
        ]
        is_killed = not is_last and self.random.random() < 0.3
        self.store.delete_files(left[: len(left) // 2 if is_killed else None])

    def _upload(self, region: str) -> str:
        self.serial += 1
        path = f"state/{region}/{self.attempt_id}-{self.serial}-aaaa.changes"
        self.store.files[path] = FileReference(path=path, length_bytes=1, sha256="0" * 64)
        return path

    def fail(self) -> None:
        """An epoch that is acknowledged, and never decided: its file stays unnamed."""
        self._upload("r0")

    def decide(self) -> None:
        checkpoint_id = max(self.store.records) + 1
        regions = []
        for name, chain in self.chains.items():
            if self.random.random() < 0.8:
                if len(chain) > 3:
                    del chain[: self.random.randint(2, len(chain))]
                    chain.insert(0, self._upload(name))
                chain.append(self._upload(name))
            files = tuple(self.store.files[path] for path in chain)
            regions.append(
                RegionRecord(region=name, attempt_id=0, keyed_state=KeyedState(files=files))
            )
        made = record(checkpoint_id, regions=tuple(regions), leader_session_id=self.session)
        self.kept.note(made)
        self.store.records[checkpoint_id] = made
        self.store.committed.add(checkpoint_id)

    def retire(self) -> None:
        run = hands_of(
            self.store, kept=self.kept, session=self.session, attempt_id=max(self.store.records)
        )
        for _ in run.perform(Retire(retained=self.random.randint(1, 3))):
            if self.random.random() < 0.1:
                self.start()  # the run is killed here
                return

    def check(self) -> None:
        for made in self.store.records.values():
            self.store.require_files(made, whole=True)

    def check_nothing_is_left(self) -> None:
        self.start(is_last=True)
        named = {f.path for each in self.store.records.values() for f in each.keyed_files}
        assert self.store.files.keys() == named


@given(seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_every_record_has_its_files_and_the_next_start_leaves_no_other_ones(seed: int) -> None:
    """Whatever run dies, at any step."""
    random = Random(seed)
    world = _World(random)
    weights = {_World.decide: 6, _World.retire: 4, _World.start: 1, _World.fail: 1}
    for step in random.choices(list(weights), list(weights.values()), k=30):
        step(world)
        world.check()
    world.check_nothing_is_left()
