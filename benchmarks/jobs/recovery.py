"""Time from ``kill -9`` of all processes to the next commit that readers see."""

import tempfile
import time
from pathlib import Path

from benchmarks.measuring import topics
from benchmarks.measuring.feeding import Feed
from benchmarks.measuring.figures import Figure
from benchmarks.measuring.rig import Rig, wait_until
from sluice.connectors.kafka.tools.demo.observer import Observer

__all__ = ["measure"]

_START_S = 120.0
_CATCH_UP_S = 30.0
_PAUSE_S = 0.05


def measure(rig: Rig, *, repeat: int) -> list[Figure]:
    """Kill a pipeline under a steady light load and restart it; then start the peer."""
    samples, plain_s = [], []
    for _ in range(repeat):
        samples.append(_sample(rig))
        plain_s.append(_plain_start(rig))
    return [
        Figure(
            what="kill -9 to the next visible commit",
            runs=[total_s for total_s, _ in samples],
            unit="s",
            goal="<= 15",
            most=15,
        ),
        Figure(
            what="  of which Python's and Spark's start",
            runs=[start_s for _, start_s in samples],
            unit="s",
            note="until the new run's first durable record",
        ),
        Figure(
            what="peer: a plain Spark query, from its start to its first batch",
            runs=plain_s,
            unit="s",
            note="no Kafka, nothing to recover",
        ),
    ]


def _plain_start(rig: Rig) -> float:
    directory = Path(tempfile.mkdtemp(dir=rig.directory))
    started_s = time.monotonic()
    with rig.start_plain(directory) as program:
        code = program.await_exit(timeout_s=_START_S)
        elapsed_s = time.monotonic() - started_s
        assert code == 0, program.log_tail()
    return elapsed_s


def _sample(rig: Rig) -> tuple[float, float]:
    source = topics.create(rig.connection, "in", partitions=2)
    output = topics.create(rig.connection, "out", partitions=2)
    directory = Path(tempfile.mkdtemp(dir=rig.directory))
    arguments = ("--interval", "0.5")
    feed = Feed(rig, source, pause_s=_PAUSE_S, burst=lambda: [(-1, b"x" * 100)])
    with feed, Observer(rig.connection, output) as observer:
        first = rig.start("pipeline", source, output, directory, arguments)
        observer.await_total(100, timeout_s=_START_S)
        killed_s = time.monotonic()
        first.program.kill()
        newest = _newest_slot(directory)
        with rig.start("pipeline", source, output, directory, arguments) as second:
            # Records that the first run committed may reach the reader after the kill.
            seen = observer.catch_up(timeout_s=_CATCH_UP_S)
            wait_until(
                lambda: _newest_slot(directory) > newest,
                program=second.program,
                timeout_s=_START_S,
            )
            fenced_s = time.monotonic()
            visible_s = observer.await_total(seen + 1, timeout_s=_START_S)
    return visible_s - killed_s, fenced_s - killed_s


def _newest_slot(directory: Path) -> int:
    found = (directory / "checkpoint").glob("chk-*/_metadata")
    return max((int(path.parent.name.removeprefix("chk-")) for path in found), default=-1)
