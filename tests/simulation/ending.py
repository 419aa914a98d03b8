"""How a world ends: a time without faults, and what every reader must have found after it."""

from typing import TYPE_CHECKING

from sluice.runtime.errors import TransactionLostError

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

_MOST_STARTS = 3


class Ending:
    """The calm and the verdict of one world; `settle` is called once."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._starts = 0

    def settle(self, *, bound: int = 5_000) -> None:
        """No more faults: whoever lives continues, until one coordinator has read everything."""
        world = self._world
        world.calm = True
        world.random.seed(world.seed)
        if world.told is not None:
            world.told.append("No more faults.")
        for process in world.processes:
            process.paused = False
        for _ in range(bound):
            if world.has_late() and world.random.random() < 0.2:
                world.land_late()
            living = [process for process in world.processes if not process.is_stuck()]
            if self._is_complete():
                break
            if not living:
                living = [self._start()]
            process = world.random.choice(living)
            for _ in range(4):
                world.clock.advance(0.01)
                process.source.bounded = True
                if not process.is_stuck():
                    process.step()
            if world.profile.markers and world.random.random() < 0.3:
                world.broker.write_markers()
        world.broker.write_markers()
        self._check_complete()

    def _start(self) -> "Process":
        world = self._world
        self._starts += 1
        most = _MOST_STARTS + 2 * world.people.remedies
        is_few = world.people.are_told_losses or self._starts <= most
        world.require(is_few, "the job is started again and again, and is not whole")
        return world.start_again()

    def _is_complete(self) -> bool:
        world = self._world
        if world.profile.external:
            return not self._missing() and not self._missing_in_files()
        # A fenced coordinator's task may open a transaction after the last sweep of the one that
        # finished: it holds readers back, not records, until somebody starts the job again.
        finished = any(
            process.finished and process.is_stuck() and self._is_in_force(process)
            for process in world.processes
        )
        return (finished or self._is_told_lost()) and not world.broker.ongoing()

    def _is_in_force(self, process: "Process") -> bool:
        world = self._world
        newest = world.history[-1].leader_session_id
        return not world.watch.lineages.turns or process.session == newest

    def _is_told_lost(self) -> bool:
        world = self._world
        is_the_end = world.profile.lost_stops and not world.profile.accepted
        return is_the_end and any(
            isinstance(process.error, TransactionLostError) for process in world.processes
        )

    def _visible(self) -> dict[int, list[int]]:
        """Offsets of each input partition, as a read_committed reader finds them."""
        world = self._world
        found: dict[int, list[int]] = {partition: [] for partition in world.ends}
        outputs = [0] if world.profile.shared_output else list(world.ends)
        for output in outputs:
            for value in world.broker.read_committed(output):
                assert isinstance(value, tuple)
                found[value[0]].append(value[1])
        return found

    def check_readers(self) -> None:
        """What the watch saw step by step is what a reader sees who begins now."""
        for partition, offsets in self._visible().items():
            due = self._world.watch.seen.get(partition, [])
            self._world.require(offsets == due, f"partition {partition} is not a prefix: {offsets}")

    def _check_complete(self) -> None:
        """Every record is visible exactly once, in order."""
        world = self._world
        self.check_readers()
        if self._is_told_lost():
            return
        missing = self._missing()
        world.require(not missing, f"not everything is visible in the end: {missing}")
        missing_rows = self._missing_in_files()
        world.require(not missing_rows, f"not every row is in a file in the end: {missing_rows}")
        world.require(self._is_complete(), "a transaction stays open, or nobody finishes")

    def _missing(self) -> dict[int, tuple[int, int, int]]:
        """By input partition what a reader sees next of it, and what there is."""
        world = self._world
        return {} if world.profile.only_files else world.watch.missing(world.ends)

    def _missing_in_files(self) -> list[str]:
        return self._world.watch.files.missing() if self._world.profile.files else []
