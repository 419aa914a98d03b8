"""What the session's JVM knows and tasks, which have none, need to write files."""

from typing import Any

from pyspark import SparkContext

from sluice.connectors.hdfs.staging.task_files import LocalTaskFiles, TaskFiles
from sluice.connectors.hdfs.staging.webhdfs_client import WebHdfsTaskFiles
from sluice.runtime.errors import IllegalTransitionError
from sluice.runtime.spark.session.session_web_hdfs import session_web_address
from sluice.runtime.storage.file_system_opening import needs_jvm

__all__ = ["default_fs", "session_task_files"]


def session_task_files(uri: str) -> TaskFiles:
    """How tasks write on the file system of ``uri``; made in the driver, used there.

    Raises:
        ConfigError: Hadoop's configuration asks for what such tasks do not have, or does not say
            where WebHDFS answers.
    """
    if not needs_jvm(uri):
        return LocalTaskFiles()
    return WebHdfsTaskFiles(address=session_web_address(_context(), uri))


def default_fs() -> str:
    """Where Spark looks for a path without a scheme."""
    return str(_context()._jsc.hadoopConfiguration().get("fs.defaultFS"))  # noqa: SLF001 - no public way


def _context() -> Any:  # noqa: ANN401 - of which only what is private is used
    context = SparkContext._active_spark_context  # noqa: SLF001 - PySpark has no public way
    if context is None:
        raise IllegalTransitionError(
            "there is no Spark session any more", {}, "Start the job again."
        )
    return context
