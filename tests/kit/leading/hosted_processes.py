"""The processes of a job whose coordinator is a process of its own, and records for it."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.embedded.ports import free_ports
from sluice.runtime.failpoints import VARIABLE
from sluice.runtime.model.checkpoint_record import CheckpointRecord, Verdict
from sluice.runtime.service.service_client import CoordinatorClient, command_address
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.kafka.kafka_records import Record, produce
from tests.kit.waiting import PATIENCE_S, wait_for

__all__ = ["PARTITIONS", "HostedProcesses", "records_arrive"]

PARTITIONS = 2
_ROOT = Path(__file__).parents[3]
_TERMINATED = 143
_COORDINATOR = "from sluice.runtime.leading.coordinator_cli import app; app()"
_DRIVER = """
import sys
from pathlib import Path
from tests.kit.hosted_program import {program}
{program}(*sys.argv[1:4], Path(sys.argv[4]), *sys.argv[5:])
"""
_WAITS = "standby: leader=coordinator"
_LEADS = "leader started: session="


class HostedProcesses:
    """The coordinators and drivers of one job; all of them end with `close`.

    Args:
        directory: for logs and Spark's files, and for the checkpoints.
        arguments: of a driver.
        program: function of `tests.kit.hosted_program` that a driver runs, with ``arguments``, a
            directory of its own and the directory of the checkpoints.
        name: of the checkpoint directory, in ``directory``.
        fs: of checkpoints that are elsewhere.
        environment: of all processes.

    Attributes:
        checkpoint: directory of the checkpoints, a path or a URI.
    """

    def __init__(
        self,
        directory: Path,
        arguments: list[str],
        *,
        program: str = "host_a_copy",
        name: str = "checkpoint",
        fs: FileSystem | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.checkpoint = fs.uri if fs else str(directory / name)
        self._fs = fs or LocalFileSystem(directory / name)
        self._program, self._name = program, name
        self._directory, self._arguments = directory, arguments
        self._environment = {**os.environ, "PYTHONPATH": str(_ROOT), **(environment or {})}
        self._logs: dict[int, Path] = {}
        self._begun: list[subprocess.Popen[bytes]] = []
        # As in `deploy`: a coordinator often has the address of the one before it.
        (port,) = free_ports(1)
        self._ports = f"{port}-{port + 15}"

    def coordinator(self, *options: str, failpoints: str = "") -> subprocess.Popen[bytes]:
        """One more coordinator.

        Args:
            failpoints: see `sluice.runtime.failpoints`.
        """
        where = ("start", "--checkpoint", self.checkpoint, "--port", self._ports)
        return self._begin(_COORDINATOR, *where, *options, failpoints=failpoints)

    def leader(self, *options: str) -> subprocess.Popen[bytes]:
        """One more coordinator, once it leads."""
        found = self.coordinator(*options)
        self.await_lead(found)
        return found

    def standby(self, *options: str) -> subprocess.Popen[bytes]:
        """One more coordinator, once it waits for another one."""
        found = self.coordinator(*options)
        self.await_text(found, _WAITS)
        return found

    def driver(self, *options: str) -> subprocess.Popen[bytes]:
        """One more driver."""
        own = self._directory / f"driver-{self._name}-{len(self._begun)}"
        code = _DRIVER.format(program=self._program)
        return self._begin(code, *self._arguments, str(own), self.checkpoint, *options)

    def _begin(self, code: str, *arguments: str, failpoints: str = "") -> subprocess.Popen[bytes]:
        path = self._directory / f"log-{self._name}-{len(self._begun)}"
        with path.open("wb") as log:
            made = subprocess.Popen(
                [sys.executable, "-c", code, *arguments],
                env={**self._environment, VARIABLE: failpoints},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._logs[made.pid] = path
        self._begun.append(made)
        return made

    def close(self) -> None:
        """End what still runs."""
        for process in self._begun:
            if process.poll() is None:
                process.kill()
            process.wait()

    # --- what is seen of them ---------------------------------------------------------------------

    def log(self, process: subprocess.Popen[bytes]) -> str:
        """Of one process."""
        return self._logs[process.pid].read_text("utf-8", errors="replace")

    def await_text(self, process: subprocess.Popen[bytes], text: str) -> None:
        """Its log has the text, and it lives."""

        def says() -> bool:
            assert process.poll() is None, self.log(process)[-4_000:]
            return text in self.log(process)

        wait_for(says, what=text)

    def await_lead(self, process: subprocess.Popen[bytes]) -> None:
        """This coordinator leads, and has resumed what runs."""
        self.await_text(process, _LEADS)

    def leads(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether it has led."""
        return _LEADS in self.log(process)

    def count_of(self, text: str) -> int:
        """How often all logs together have this text."""
        return sum(self.log(process).count(text) for process in self._begun)

    def says(self, text: str, times: int = 1) -> bool:
        """Whether all logs together have this text so often."""
        return self.count_of(text) >= times

    def decided(self) -> list[CheckpointRecord]:
        """All decisions but the first."""
        store = CheckpointStore(self._fs)
        records = [store.read(place) for place in store.slots() if place]
        return [r for r in records if r is not None and r.verdict is Verdict.DECIDED]

    def attempts(self) -> list[dict[str, int]]:
        """Attempt by region of each decision but the first."""
        return [
            {region.region: region.attempt_id for region in record.regions}
            for record in self.decided()
        ]

    def description(self) -> bytes | None:
        """Of the job, as its last driver wrote it; the checkpoints are in a local directory."""
        path = self._directory / self._name / "_job"
        return path.read_bytes() if path.exists() else None

    # --- what ends them ---------------------------------------------------------------------------

    def stop(self) -> None:
        """As `sluice job stop`: the command finds the leader."""
        with CoordinatorClient(command_address(self._fs)) as client:
            client.stop()

    def terminate(self, process: subprocess.Popen[bytes]) -> None:
        """SIGTERM, and wait for its end."""
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == _TERMINATED, self.log(process)[-4_000:]

    def pause(self, process: subprocess.Popen[bytes]) -> None:
        """SIGSTOP: it does nothing until `resume`."""
        process.send_signal(signal.SIGSTOP)

    def resume(self, process: subprocess.Popen[bytes]) -> None:
        """SIGCONT."""
        process.send_signal(signal.SIGCONT)

    def kill(self, *processes: subprocess.Popen[bytes]) -> None:
        """``kill -9`` of all."""
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


@contextmanager
def records_arrive(
    bootstrap: str, topic: str, first: int = 0, *, keys: int | None = None, every_s: float = 0.1
) -> Iterator[Callable[[], int]]:
    """Records arrive all the time; the function ends that, and returns the number after the last
    one.

    Args:
        keys: so many keys, each in both partitions; None: the records have none.
        every_s: between two times 100 records.
    """
    over, count = threading.Event(), first

    def produce_some() -> None:
        nonlocal count
        while not over.is_set():
            numbers = range(count, count + 100)
            produce(bootstrap, topic, [_record(n, keys) for n in numbers])
            count += 100
            over.wait(every_s)

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
        return Record(value=b"%d" % number, partition=number % PARTITIONS)
    key = b"k%d" % (number % keys)
    return Record(key=key, value=b"%d" % number, partition=number // keys % PARTITIONS)
