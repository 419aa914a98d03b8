"""A copy of records by coordinators and drivers that are real processes, and its exact output."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.verify.topic_history import topic_ends
from sluice.runtime.storage.file_system import FileSystem
from tests.kit.kafka.kafka_records import Record, read
from tests.kit.leading.hosted_processes import PARTITIONS, HostedProcesses, records_arrive
from tests.kit.waiting import PATIENCE_S, wait_for

__all__ = ["HostedCopy"]


class HostedCopy(HostedProcesses):
    """One job; all of its processes end with `close`.

    Args:
        directory, fs, environment: see `HostedProcesses`.
        bootstrap, source, sink: what the job copies.
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
        super().__init__(directory, [bootstrap, source, sink], fs=fs, environment=environment)
        self._bootstrap, self._source, self._sink = bootstrap, source, sink

    def records(self, *, every_s: float = 0.1) -> AbstractContextManager[Callable[[], int]]:
        """Records arrive all the time; the function ends that, and returns their number."""
        return records_arrive(self._bootstrap, self._source, every_s=every_s)

    def await_more(self, count: int = 200) -> None:
        """Until readers of committed records see so many more; markers count, too."""
        target = self._visible() + count
        wait_for(lambda: self._visible() >= target, what=f"{count} records more", poll_s=0.3)

    def _visible(self) -> int:
        connection = KafkaConnection(bootstrap_servers=self._bootstrap)
        return sum(topic_ends(connection, self._sink).stable.values())

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
