"""A job with two coordinators of its own, of which one leads, and two drivers that host regions."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from sluice.runtime.errors import StreamError
from sluice.runtime.service.service_client import CoordinatorClient, command_address
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.environment.cluster import Bed
from tests.environment.containers import Container
from tests.environment.pipeline import BedFailureError, Pipeline, Shape
from tests.environment.plan import COORDINATORS, HOSTS, LEADER

_END_S = 300.0


class LedPipeline(Pipeline):
    """`Pipeline` whose drivers live at the same time, and whose coordinators are elected."""

    programs = (*COORDINATORS, *HOSTS)

    def __init__(self, bed: Bed, shape: Shape, hadoop: Any) -> None:
        super().__init__(bed, shape, hadoop)
        self._fs = open_file_system(self._checkpoint, hadoop)

    @property
    def idle(self) -> tuple[str, ...]:
        """See `Pipeline.idle`."""
        return ()

    @property
    def leader(self) -> str:
        """The name of the coordinator that has committed the newest checkpoint."""
        self._marks.refresh()
        last = self._marks.last
        return max(last, key=last.__getitem__, default=COORDINATORS[0])

    def resolve(self, target: str) -> str:
        """See `Pipeline.resolve`."""
        return self.leader if target == LEADER else target

    def _start(self) -> None:
        if self.shape.ha == "zookeeper":
            self.bed.start_zookeepers()
        hosts = [self.bed.make_driver(name, [*self._arguments(), "--hosted"]) for name in HOSTS]
        coordinators = [
            self.bed.make_coordinator(name, self._checkpoint, ha=self.shape.ha)
            for name in COORDINATORS
        ]
        with ThreadPoolExecutor(len(self.programs)) as pool:
            list(pool.map(Container.start, [*hosts, *coordinators]))

    def _has_standbys(self) -> bool:
        with suppress(StreamError), CoordinatorClient(command_address(self._fs)) as client:
            election = client.status()["job"]["election"]
            return len(election["standbys"]) == len(COORDINATORS) - 1
        return False

    def _end(self) -> None:
        """As `sluice job stop`: every process of the job ends without an error.

        A coordinator that begins just after the stop would begin the job anew, and so it should.
        """
        self.wait(self._has_standbys, timeout_s=_END_S, what="each coordinator to lead or to wait")
        self.expected_down.update(self.programs)
        with CoordinatorClient(command_address(self._fs)) as client:
            client.stop()
        left = [self.bed.containers[name] for name in self.programs]
        self.wait(
            lambda: not any(each.runs for each in left), timeout_s=_END_S, what="the job to end"
        )
        codes = {each.name: each.exit_code for each in left}
        if any(codes.values()):
            raise BedFailureError(f"exit codes {codes} of a stopped job\n{self.story()}")
