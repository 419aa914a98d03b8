"""Costs of files: copies by Sluice and by Spark's sink, a commit and a start with many files."""

import json
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks.files.restarts import measure_restarts
from benchmarks.measuring import topics
from benchmarks.measuring.bench_bucket import bench_bucket
from benchmarks.measuring.figures import Figure
from benchmarks.measuring.rig import PARTITIONS, Rig
from sluice.connectors.hdfs.committing.file_committer import FileCommitter
from sluice.connectors.hdfs.staging.committables import FileSet, StagedFile, encode_file_set
from sluice.runtime.contracts import CommitOutcome
from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs
from sluice.runtime.storage.file_system import FileSystem, OpenFileSystem
from sluice.runtime.storage.file_system_opening import open_file_system
from sluice.runtime.storage.hadoop_jvm import hadoop_jvm

__all__ = ["measure", "measure_objects"]

_EPOCH_RECORDS = "250000"
_FILES = 1_000
_MANY = 100_000
_RUN_S = 900.0
_AT_ONCE = 8


def measure(rig: Rig, *, records: int, repeat: int, files: int) -> list[Figure]:
    """Measure all of it. Parts on HDFS start a cluster; ``files``: committed before a restart."""
    figures = _copies(rig, records=records, repeat=repeat)
    with _hdfs() as (uri, opened):
        figures.append(_commits(uri, opened, repeat=repeat))
        figures.append(measure_restarts(uri, opened, many=files, where="HDFS"))
    figures.append(_local_restarts(rig))
    return figures


def _copies(rig: Rig, *, records: int, repeat: int) -> list[Figure]:
    """Seconds of a copy, query start and end included, over those of Spark's own sink."""
    seconds = _copied(rig, records=records, repeat=repeat)
    peer = seconds.pop("spark")
    return [
        Figure(what="peer: Spark's own file sink, Parquet, whole run", runs=peer, unit="s"),
        *(
            Figure(
                what=f"files, {way}, over Spark's own file sink",
                runs=[ours / theirs for ours, theirs in zip(runs, peer, strict=True)],
                unit="x",
                goal="<= 1.10",
                most=1.10,
                note="s: " + " ".join(f"{run:.1f}" for run in runs),
            )
            for way, runs in seconds.items()
        ),
    ]


def _copied(
    rig: Rig, *, records: int, repeat: int, more: Sequence[str] = ()
) -> dict[str, list[float]]:
    """Seconds of each copy, by its way."""
    source = topics.create(rig.connection, "in", partitions=PARTITIONS)
    topics.fill(rig.connection, source, records, value_bytes=100, partitions=PARTITIONS)
    directory = Path(tempfile.mkdtemp(dir=rig.directory))
    progress = directory / "progress"
    arguments = ["--directory", str(directory / "out"), "--progress", str(progress)]
    arguments += ["--max-records", _EPOCH_RECORDS, "--repeat", str(repeat), *more]
    with rig.start("file_copies", source, "", directory, arguments) as running:
        code = running.program.await_exit(timeout_s=_RUN_S)
        assert code == 0, running.program.log_tail()
    lines = [json.loads(line) for line in progress.read_text("utf-8").splitlines()]
    assert {line["rows"] for line in lines} == {records}, lines
    seconds: dict[str, list[float]] = {line["way"]: [] for line in lines}
    for line in lines:
        if line["turn"] > 0:
            seconds[line["way"]].append(line["seconds"])
    return seconds


def measure_objects(rig: Rig, *, records: int, repeat: int) -> list[Figure]:
    """Measure copies to an object store, and the same copies to a local disk."""
    with bench_bucket() as bucket:
        uri = f"{bucket}/{uuid.uuid4().hex}"
        seconds = _copied(rig, records=records, repeat=repeat, more=["--objects", uri])
    ours, local = seconds["objects"], seconds["chained"]
    rate = Figure(
        what="files to an object store over files to a local disk, rate",
        runs=[theirs / mine for mine, theirs in zip(ours, local, strict=True)],
        unit="x",
        goal=">= 0.90",
        least=0.90,
        note="s: " + " ".join(f"{run:.1f}" for run in ours),
    )
    return [rate]


def _local_restarts(rig: Rig) -> Figure:
    """As many files as the goal names: a local disk creates them in minutes."""
    uri = Path(tempfile.mkdtemp(dir=rig.directory)).as_uri()
    return measure_restarts(uri, open_file_system, many=_MANY, where="a local disk")


@contextmanager
def _hdfs() -> Iterator[tuple[str, OpenFileSystem]]:
    with EmbeddedHdfs() as servers, hadoop_jvm() as jvm:
        yield f"{servers.uri}/bench", lambda uri: open_file_system(uri, jvm)


def _write(fs: FileSystem, paths: Sequence[str]) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda path: fs.write_temporary(path, b"rows"), paths))


def _commits(uri: str, opened: OpenFileSystem, *, repeat: int) -> Figure:
    """Measure the renames of one decision."""
    fs = opened(uri)
    runs = []
    for _ in range(repeat):
        staging = f".staging/{uuid.uuid4().hex}"
        files = tuple(
            StagedFile(
                staged=f"dt={n % 10}/part-{n}",
                final=f"dt={n % 10}/part-{n}-{staging[-32:]}",
                length_bytes=4,
            )
            for n in range(_FILES)
        )
        _write(fs, [f"{staging}/{file.staged}" for file in files])
        found = FileSet(target=f"{uri}/orders", staging=staging, rows=_FILES, files=files)
        committer = FileCommitter(opened)
        started_s = time.monotonic()
        entry = encode_file_set(found, operator_id="op")
        (report,) = committer.commit([entry], timeout_s=60, after_crash=False)
        runs.append(time.monotonic() - started_s)
        committer.close()
        assert report.outcome is CommitOutcome.COMMITTED, report
    return Figure(
        what=f"commit of {_FILES:,} files on HDFS", runs=runs, unit="s", goal="<= 2", most=2.0
    )
