"""A backlog read by four regions, one at a quarter of the speed: fixed and balanced assignment.

A region runs one task at a time, which sleeps for its records. So regions and not the machine's
cores limit the speed, and the benchmark compares only the assignments.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.measuring import topics
from benchmarks.measuring.figures import Figure
from benchmarks.measuring.rig import Rig
from sluice.connectors.kafka.tools.verify.topic_history import topic_ends
from sluice.runtime.checkpoint.checkpoint_store import open_store

__all__ = ["measure"]

_PARTITIONS = 16
_REGIONS = 4
_PER_S = 20_000.0
_SLOWER = 4
_VALUE_BYTES = 10
_START_S = 240.0


def measure(rig: Rig, *, records: int) -> list[Figure]:
    """Read the same backlog twice; time from the first barrier to the last completion marker."""
    source = topics.create(rig.connection, "in", partitions=_PARTITIONS)
    topics.fill(rig.connection, source, records, value_bytes=_VALUE_BYTES, partitions=_PARTITIONS)
    fixed_s, even, _ = _seconds(rig, source, records, ())
    balanced_s, counts, moves = _seconds(rig, source, records, ("--balance",))
    return [
        Figure(
            what=f"{_REGIONS} regions, one {_SLOWER} times slower: balanced over fixed throughput",
            runs=[fixed_s / balanced_s],
            unit="x",
            goal=">= 1.3",
            least=1.3,
            note=f"a backlog of {records:,}; splits {_listed(even)}, then {_listed(counts)} "
            f"after {moves} moves",
        ),
        Figure(what="  fixed", runs=[records / fixed_s], unit="records/s"),
        Figure(what="  balanced", runs=[records / balanced_s], unit="records/s"),
    ]


def _listed(counts: Mapping[str, int]) -> str:
    return " ".join(str(counts[name]) for name in sorted(counts))


def _seconds(
    rig: Rig, source: str, records: int, arguments: Sequence[str]
) -> tuple[float, Mapping[str, int], int]:
    """Read all; returns the splits of each region at the end, and the assignments before that."""
    output = topics.create(rig.connection, "out", partitions=_PARTITIONS)
    common = ["--regions", str(_REGIONS), "--until-end", "--one-task"]
    common += ["--master", f"local[{_REGIONS}]"]
    common += ["--speed", str(_PER_S), "--slow", str(_PER_S / _SLOWER)]
    longest_s = _START_S + 2 * records / _REGIONS / (_PER_S / _SLOWER)
    with rig.run("regional_pipeline", source, output, [*common, *arguments]) as running:
        if running.program.await_exit(timeout_s=longest_s) != 0:
            raise RuntimeError(f"not read in time, or failed:\n{running.program.log_tail()}")
        lines = [line for line in running.progress() if line["marked_s"] is not None]
        store = open_store(str(running.directory / "checkpoint"))
        last = max(store.slots())
        record = store.read(last)
    found = sum(line["records"] for line in lines)
    seen = sum(topic_ends(rig.connection, output).stable.values())
    assert found == records, f"{found:,} of {records:,} records were committed"
    assert seen >= records, f"{seen:,} of {records:,} offsets are visible"
    assert record is not None
    assert record.assignment is not None
    counts = {name: len(keys) for name, keys in record.assignment.regions.items()}
    return _elapsed_s(lines), counts, record.assignment.version - 1


def _elapsed_s(lines: Sequence[Mapping[str, Any]]) -> float:
    first = min(line["at_s"] - line["marked_s"] for line in lines)
    return float(max(line["at_s"] for line in lines) - first)
