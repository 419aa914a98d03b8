"""Copies of a topic into Iceberg tables: Sluice beside Spark's own source and Iceberg's own sink.

Iceberg's newest jar is for Spark 4.1, so that Spark runs in an environment of its own.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measuring import topics
from benchmarks.measuring.figures import Figure
from benchmarks.measuring.rig import PARTITIONS, Rig
from benchmarks.peers import environments
from sluice.runtime.embedded.program import Program, ProgramSpec

__all__ = ["measure"]

_RUN_S = 1800.0
_WAYS = ("sluice", "spark", "as many commits")


def measure(rig: Rig, *, records: int, repeat: int) -> list[Figure]:
    """All in turn over the same records; each program copies once uncounted. The peer makes one
    commit, and as many as the turn before it of ours."""
    source = topics.create(rig.connection, "in", partitions=PARTITIONS)
    topics.fill(rig.connection, source, records, value_bytes=100, partitions=PARTITIONS)
    rates: dict[str, list[float]] = {way: [] for way in _WAYS}
    commits: dict[str, list[str]] = {way: [] for way in _WAYS}
    most = records
    for turn in range(repeat):
        for way in _WAYS if turn % 2 == 0 else (_WAYS[1], _WAYS[0], _WAYS[2]):
            found = _copied(rig, source, way, most=most)
            if way == "sluice":
                most = -(-records // int(found["commits"]))
            assert found["rows"] == records, f"{way}: {found}"
            rates[way].append(records / found["seconds"])
            commits[way].append(f"{found['commits']:.0f}")
    ours, peer, paced = (rates[way] for way in _WAYS)
    return [
        Figure(
            what="peer: Spark's source, Iceberg's own streaming sink, warm",
            runs=peer,
            unit="records/s",
            note="commits: " + " ".join(commits["spark"]),
        ),
        Figure(
            what="a topic into an Iceberg table, warm",
            runs=ours,
            unit="records/s",
            note="commits: " + " ".join(commits["sluice"]),
        ),
        Figure(
            what="a topic into an Iceberg table, rate over Iceberg's own streaming sink",
            runs=[mine / theirs for mine, theirs in zip(ours, peer, strict=True)],
            unit="x",
            goal=">= 1.5",
            least=1.5,
        ),
        Figure(
            what="the same, and the peer makes as many commits",
            runs=[mine / theirs for mine, theirs in zip(ours, paced, strict=True)],
            unit="x",
            goal=">= 1.5",
            least=1.5,
            note="its commits: " + " ".join(commits["as many commits"]),
        ),
    ]


def _copied(rig: Rig, source: str, way: str, *, most: int) -> Mapping[str, Any]:
    """What the program says of its second copy."""
    directory = Path(tempfile.mkdtemp(dir=rig.directory))
    progress = directory / "progress"
    arguments = ["--directory", str(directory / "out"), "--progress", str(progress)]
    if way == "sluice":
        running = rig.start("iceberg_copies", source, "", directory, arguments)
        program = running.program
    else:
        arguments += [] if way == "spark" else ["--most", str(most)]
        program = _spark(rig, source, directory, arguments)
    try:
        code = program.await_exit(timeout_s=_RUN_S)
        assert code == 0, program.log_tail()
    finally:
        program.kill()
    return dict(json.loads(progress.read_text("utf-8").splitlines()[-1]))


def _spark(rig: Rig, source: str, directory: Path, arguments: list[str]) -> Program:
    places = (environments.jars(name) for name in _JARS)
    common = ["--bootstrap", rig.bootstrap, "--input", source]
    common += ["--jars", ",".join(map(str, places))]
    python = environments.python(environments.SPARK_OF_ICEBERG)
    program = environments.PROGRAMS / "spark_iceberg.py"
    return Program(
        ProgramSpec(
            command=(str(python), str(program), *common, *arguments),
            log_path=directory / "log",
            environment={"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": ""},
            working_dir=directory,
        )
    )


_JARS = (environments.SPARK_KAFKA_OF_ICEBERG, environments.ICEBERG)
