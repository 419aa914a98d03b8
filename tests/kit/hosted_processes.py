"""Coordinators and drivers of one job as real processes, records for it, and its exact output."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.verify.topic_history import topic_ends
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.model.checkpoint_record import Verdict
from sluice.runtime.service.service_client import CoordinatorClient, command_address
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.kafka.kafka_records import Record, produce, read
from tests.kit.waiting import PATIENCE_S, wait_for

__all__ = ["PARTITIONS", "HostedProcesses"]

PARTITIONS = 2
_ROOT = Path(__file__).parents[2]
_TERMINATED = 143
_COORDINATOR = "from sluice.runtime.leading.coordinator_cli import app; app()"
_DRIVER = """
import sys
from pathlib import Path
from tests.kit.hosted_program import host_a_copy
host_a_copy(*sys.argv[1:4], Path(sys.argv[4]), sys.argv[5], bounded=False)
"""
_WAITS = "standby: leader=coordinator"
_LEADS = "leader started: session="


class HostedProcesses:
    """The coordinators and drivers of one job; all of them end with `close`.

    Args:
        directory: for logs, and for the checkpoints.
        bootstrap, source, sink: what the job copies.
        fs: of checkpoints that are elsewhere.
        environment: of all processes.

    Attributes:
        checkpoint: directory of the checkpoints.
    """

    def __init__(
        self,
        directory: Path,
        bootstrap: str,
        source: str,
        sink: str,
        *,
        fs: FileSystem | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.fs = fs or LocalFileSystem(directory / "checkpoint")
        self.checkpoint = self.fs.uri
        self._directory, self._bootstrap = directory, bootstrap
        self._source, self._sink = source, sink
        self._environment = {**os.environ, "PYTHONPATH": str(_ROOT), **(environment or {})}
        self._logs: dict[int, Path] = {}
        self._begun: list[subprocess.Popen[bytes]] = []

    def coordinator(self, *options: str) -> subprocess.Popen[bytes]:
        """One more coordinator."""
        return self._begin(_COORDINATOR, "start", "--checkpoint", self.checkpoint, *options)

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

    def driver(self) -> subprocess.Popen[bytes]:
        """One more driver."""
        own = self._directory / f"driver-{len(self._begun)}"
        topics = (self._bootstrap, self._source, self._sink)
        return self._begin(_DRIVER, *topics, str(own), self.checkpoint)

    def _begin(self, code: str, *arguments: str) -> subprocess.Popen[bytes]:
        path = self._directory / f"log-{len(self._begun)}"
        with path.open("wb") as log:
            made = subprocess.Popen(
                [sys.executable, "-c", code, *arguments],
                env=self._environment,
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

    def says(self, text: str, times: int = 1) -> bool:
        """Whether all logs together have this text so often."""
        logs = self._directory.glob("log-*")
        return sum(log.read_text("utf-8", errors="replace").count(text) for log in logs) >= times

    def attempts(self) -> list[dict[str, int]]:
        """Attempt by region of each decision but the first."""
        store = CheckpointStore(self.fs)
        records = [store.read(place) for place in store.slots() if place]
        return [
            {region.region: region.attempt_id for region in record.regions}
            for record in records
            if record is not None and record.verdict is Verdict.DECIDED
        ]

    # --- the job ----------------------------------------------------------------------------------

    @contextmanager
    def records(self, *, every_s: float = 0.1) -> Iterator[Callable[[], int]]:
        """Records arrive all the time; the function ends that, and returns their number."""
        over, count = threading.Event(), 0

        def produce_some() -> None:
            nonlocal count
            while not over.is_set():
                made = [
                    Record(value=b"%d" % number, partition=number % PARTITIONS)
                    for number in range(count, count + 100)
                ]
                produce(self._bootstrap, self._source, made)
                count += len(made)
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

    def await_more(self, count: int = 200) -> None:
        """Until readers of committed records see so many more; markers count, too."""
        target = self._visible() + count
        wait_for(lambda: self._visible() >= target, what=f"{count} records more", poll_s=0.3)

    def _visible(self) -> int:
        connection = KafkaConnection(bootstrap_servers=self._bootstrap)
        return sum(topic_ends(connection, self._sink).stable.values())

    def stop(self) -> None:
        """As `sluice job stop`: the command finds the leader."""
        with CoordinatorClient(command_address(self.fs)) as client:
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

    def finish(self, count: int, *ending: subprocess.Popen[bytes]) -> None:
        """Wait for the copies of so many records, stop the job, wait for the ends of these
        processes, and require each record once and in order."""
        wait_for(lambda: self._visible() >= count, what="all records", poll_s=0.3)
        wait_for(lambda: len(self._read()) >= count, what="all records", poll_s=1.0)
        self.stop()
        for process in ending:
            assert process.wait(PATIENCE_S) == 0, self.log(process)[-4_000:]
        written: dict[int | None, list[int]] = {number: [] for number in range(PARTITIONS)}
        for record in self._read():
            written[record.partition].append(int(record.value or b""))
        expected = {p: list(range(p, count, PARTITIONS)) for p in range(PARTITIONS)}
        assert written == expected, {p: _differences(written[p], expected[p]) for p in expected}

    def _read(self) -> Sequence[Record]:
        return read(self._bootstrap, self._sink)


def _differences(found: Sequence[int], expected: Sequence[int]) -> str:
    lost, doubled = len(set(expected) - set(found)), len(found) - len(set(found))
    return f"lost {lost}, doubled {doubled}, of {len(expected)}"
