"""The processes of a job whose coordinator is a process of its own, and records for it."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.failpoints import VARIABLE
from sluice.runtime.model.checkpoint_record import CheckpointRecord, Verdict
from sluice.runtime.service.service_client import CoordinatorClient, command_address
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.kafka.kafka_records import Record, produce, read
from tests.kit.waiting import PATIENCE_S, wait_for

__all__ = ["WAIT_S", "HostedProcesses", "grows", "records_arrive"]

WAIT_S = PATIENCE_S
_COORDINATOR = "from sluice.runtime.leading.coordinator_cli import app; app()"
_DRIVER = """
import sys
from pathlib import Path
from tests.kit.hosted_program import {program}
{program}(*sys.argv[1:4], Path(sys.argv[4]), Path(sys.argv[5]), *sys.argv[6:])
"""


class HostedProcesses:
    """The coordinators and drivers of one job; all of them end with the test.

    Args:
        directory: for logs and Spark's files.
        arguments: of a driver.
        program: function of `tests.kit.hosted_program` that a driver runs, with ``arguments``, a
            directory of its own and the checkpoint directory.
        name: of the checkpoint directory, in ``directory``.
    """

    def __init__(
        self,
        directory: Path,
        arguments: list[str],
        *,
        program: str = "host_a_copy",
        name: str = "checkpoint",
    ) -> None:
        self.checkpoint = directory / name
        self._program = program
        self._directory, self._arguments = directory, arguments
        self._begun: list[subprocess.Popen[bytes]] = []

    def coordinator(self, *options: str, failpoints: str = "") -> subprocess.Popen[bytes]:
        """One more coordinator.

        Args:
            failpoints: see `sluice.runtime.failpoints`.
        """
        where = ("start", "--checkpoint", str(self.checkpoint))
        return self._begin(_COORDINATOR, *where, *options, failpoints=failpoints)

    def driver(self, *options: str) -> subprocess.Popen[bytes]:
        """One more driver."""
        own = self._directory / f"driver-{self.checkpoint.name}-{len(self._begun)}"
        code = _DRIVER.format(program=self._program)
        return self._begin(code, *self._arguments, str(own), str(self.checkpoint), *options)

    def _begin(self, code: str, *arguments: str, failpoints: str = "") -> subprocess.Popen[bytes]:
        root = str(Path(__file__).parents[3])
        environment = {**os.environ, "PYTHONPATH": root, VARIABLE: failpoints}
        log_path = self._directory / f"log-{self.checkpoint.name}-{len(self._begun)}"
        with log_path.open("wb") as log:
            made = subprocess.Popen(
                [sys.executable, "-c", code, *arguments],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._begun.append(made)
        return made

    def close(self) -> None:
        """End what still runs."""
        for process in self._begun:
            if process.poll() is None:
                process.kill()
            process.wait()

    def decided(self) -> list[CheckpointRecord]:
        """All decisions but the first."""
        store = open_store(str(self.checkpoint))
        records = [store.read(place) for place in store.slots() if place]
        return [r for r in records if r is not None and r.verdict is Verdict.DECIDED]

    def attempts(self) -> list[dict[str, int]]:
        """Attempt by region of each decision but the first."""
        return [
            {region.region: region.attempt_id for region in record.regions}
            for record in self.decided()
        ]

    def description(self) -> bytes | None:
        """Of the job, as its last driver wrote it."""
        path = self.checkpoint / "_job"
        return path.read_bytes() if path.exists() else None

    def count_of(self, text: str) -> int:
        """How often their logs have this text."""
        logs = self._directory.glob(f"log-{self.checkpoint.name}-*")
        return sum(log.read_text().count(text) for log in logs)

    def says(self, text: str, times: int = 1) -> bool:
        """Whether their logs have this text so often."""
        return self.count_of(text) >= times

    def stop(self) -> None:
        """As `sluice job stop`: the command finds the leader."""
        address = command_address(LocalFileSystem(self.checkpoint))
        with CoordinatorClient(address) as client:
            client.stop()


@contextmanager
def records_arrive(
    bootstrap: str, topic: str, first: int = 0, *, keys: int | None = None
) -> Iterator[Callable[[], int]]:
    """Records arrive all the time; the function ends that, and returns the number after the last
    one.

    Args:
        keys: so many keys, each in both partitions; None: the records have none.
    """
    over, count = threading.Event(), first

    def produce_some() -> None:
        nonlocal count
        while not over.is_set():
            numbers = range(count, count + 100)
            produce(bootstrap, topic, [_record(n, keys) for n in numbers])
            count += 100
            over.wait(0.1)

    def end() -> int:
        over.set()
        thread.join()
        return count

    thread = threading.Thread(target=produce_some)
    thread.start()
    try:
        yield end
    finally:
        end()


def _record(number: int, keys: int | None) -> Record:
    if keys is None:
        return Record(value=b"%d" % number, partition=number % 2)
    key = b"k%d" % (number % keys)
    return Record(key=key, value=b"%d" % number, partition=number // keys % 2)


def grows(bootstrap: str, sink: str, by: int) -> None:
    """Until readers see so many more records."""
    before = len(read(bootstrap, sink))
    wait_for(lambda: len(read(bootstrap, sink)) >= before + by, timeout_s=WAIT_S, poll_s=0.3)
