"""Chooses where Spark keeps its logs and state of a job's micro-batch regions."""

import contextlib
import logging
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from sluice.runtime.checkpoint.spark_place import bind_spark_directory, require_undivided
from sluice.runtime.errors import ConfigError
from sluice.runtime.graph.job_graph import Region
from sluice.runtime.spark.run.job_spec import JobSpec
from sluice.runtime.spark.session.spark_session import require_scheme, spark_hindrance
from sluice.runtime.storage.divided_directory import DividedDirectory
from sluice.runtime.storage.file_system import FileSystem, OpenFileSystem, close_quietly
from sluice.runtime.storage.file_system_opening import absolute_uri, hadoop_uri
from sluice.runtime.storage.local_fs import LocalFileSystem

__all__ = ["require_spark_directory", "spark_files"]

log = logging.getLogger(__name__)

_CLIENT = (
    "add Hadoop's client of this store to spark.jars.packages (s3: org.apache.hadoop:hadoop-aws)"
)


def require_spark_directory(job: JobSpec, batched: Collection[Region]) -> None:
    """Spark can write the logs and the state of these regions.

    Args:
        batched: the regions that run in micro-batches.
    Raises:
        ConfigError: it cannot.
    """
    given = job.spark_checkpoint_dir
    directory = hadoop_uri(absolute_uri(job.checkpoint_dir if given is None else given))
    if given is not None:
        require_scheme(job.spark, given)
    elif not any(region.stateful for region in batched):
        return  # a directory of this run will do
    hindrance = spark_hindrance(job.spark, directory) if batched else None
    if hindrance is None:
        return
    names = ",".join(sorted(region.name for region in batched))
    where = {"uri": directory, "micro_batch_regions": names, "error": hindrance}
    raise ConfigError(
        "Spark cannot write its logs and state to this object store",
        where,
        f"Give spark_checkpoint_dir= on hdfs: or on a mount of every host, or {_CLIENT}.",
    )


@contextlib.contextmanager
def spark_files(
    job: JobSpec, batched: Collection[Region], main: FileSystem, open_at: OpenFileSystem
) -> Iterator[FileSystem]:
    """The checkpoint directory with Spark's files, for one run; `require_spark_directory` was
    called.

    A region without state needs nothing of an earlier run's logs. So on an object store that Spark
    cannot write, its logs lie in a temporary directory of this run.

    Args:
        main: rooted at the checkpoint directory; stays open.
    Raises:
        ConfigError, DamagedCheckpointError: see `bind_spark_directory`.
    """
    main_uri, given = absolute_uri(main.uri), job.spark_checkpoint_dir
    with contextlib.ExitStack() as stack:
        if given is not None and absolute_uri(given) != main_uri:
            spark = open_at(absolute_uri(given))
            stack.callback(close_quietly, spark)
            yield bind_spark_directory(main, spark)
            return
        require_undivided(main)
        if not batched or spark_hindrance(job.spark, hadoop_uri(main_uri)) is None:
            yield main
            return
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-spark-"))
        log.info(
            "Spark cannot write to the checkpoint directory; its logs of this run lie in a "
            "temporary directory: job=%s directory=%s",
            job.name,
            directory,
        )
        yield DividedDirectory(main, lambda: LocalFileSystem(Path(directory)))
