"""How tasks reach a file system without a JVM: from the configuration of the session's JVM."""

import logging
from typing import Any

from pyspark import SparkContext

from sluice.runtime.errors import ConfigError
from sluice.runtime.state.state_files import StateStore
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import absolute_uri, needs_jvm, without_scheme
from sluice.runtime.storage.objects.object_file_system import ObjectFileSystem
from sluice.runtime.storage.objects.object_location import ObjectLocation
from sluice.runtime.storage.objects.object_task_files import ObjectTaskFiles
from sluice.runtime.storage.task_files import LocalTaskFiles, TaskFiles
from sluice.runtime.storage.web_hdfs import WebHdfsAddress, web_hdfs_address
from sluice.runtime.storage.web_hdfs_client import WebHdfsTaskFiles

__all__ = ["checkpoint_web_address", "session_web_address", "state_store", "task_files"]

log = logging.getLogger(__name__)


def session_web_address(context: SparkContext, uri: str) -> WebHdfsAddress:
    """WebHDFS of the file system that ``uri`` names. Driver.

    Raises:
        ConfigError: Hadoop's configuration requires a feature that such tasks do not have, or has
            no address of WebHDFS.
    """
    jvm: Any = context._jvm  # noqa: SLF001 - PySpark has no public way
    conf = context._jsc.hadoopConfiguration()  # noqa: SLF001 - no public way
    hadoop = jvm.org.apache.hadoop
    hadoop.hdfs.HdfsConfiguration.init()  # makes every configuration read hdfs-site.xml, too
    user = hadoop.security.UserGroupInformation.getCurrentUser().getShortUserName()
    return web_hdfs_address(uri, conf.get, user=user)


def checkpoint_web_address(
    context: SparkContext, fs: FileSystem
) -> WebHdfsAddress | ObjectLocation | None:
    """How clients without a JVM read a checkpoint directory that is not local.

    Without it (HDFS without WebHDFS) a task cannot read the leader record while its driver does not
    answer; the job still runs.
    """
    if isinstance(fs, ObjectFileSystem):
        return fs.location
    if not needs_jvm(fs.uri):
        return None
    try:
        return session_web_address(context, fs.uri)
    except ConfigError as err:
        log.info("tasks cannot read the leader record: uri=%s error=%s", fs.uri, err)
        return None


def task_files(context: SparkContext, uri: str) -> TaskFiles:
    """How tasks write to the file system of ``uri``; made in the driver, used in tasks.

    Raises:
        ConfigError: as `session_web_address`.
    """
    if not needs_jvm(uri):
        return LocalTaskFiles()
    return WebHdfsTaskFiles(address=session_web_address(context, uri))


def state_store(context: SparkContext, fs: FileSystem) -> StateStore:
    """The checkpoint directory for tasks with keyed state; made and checked in the driver.

    Raises:
        ConfigError: as `task_files`.
        UnreachableError: WebHDFS did not answer in time.
    """
    files: TaskFiles
    if isinstance(fs, ObjectFileSystem):
        files = ObjectTaskFiles(fs.location)
    else:
        files = task_files(context, fs.uri)
    files.check()
    return StateStore(files=files, root=without_scheme(absolute_uri(fs.uri)))
