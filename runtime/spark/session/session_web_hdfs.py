"""Where tasks, which have no JVM, reach HDFS: as the session's own JVM is configured."""

import logging
from typing import Any

from pyspark import SparkContext

from sluice.runtime.errors import ConfigError
from sluice.runtime.storage.file_system_opening import needs_jvm
from sluice.runtime.storage.web_hdfs import WebHdfsAddress, web_hdfs_address

__all__ = ["checkpoint_web_address", "session_web_address"]

log = logging.getLogger(__name__)


def session_web_address(context: SparkContext, uri: str) -> WebHdfsAddress:
    """WebHDFS of the file system that ``uri`` names. Driver.

    Raises:
        ConfigError: Hadoop's configuration asks for what such tasks do not have, or does not say
            where WebHDFS answers.
    """
    jvm: Any = context._jvm  # noqa: SLF001 - PySpark has no public way
    conf = context._jsc.hadoopConfiguration()  # noqa: SLF001 - no public way
    hadoop = jvm.org.apache.hadoop
    hadoop.hdfs.HdfsConfiguration.init()  # makes every configuration read hdfs-site.xml, too
    user = hadoop.security.UserGroupInformation.getCurrentUser().getShortUserName()
    return web_hdfs_address(uri, conf.get, user=user)


def checkpoint_web_address(context: SparkContext, uri: str) -> WebHdfsAddress | None:
    """The same for a checkpoint directory, where it is on HDFS and WebHDFS is to be had.

    Without it a task cannot look who leads while its driver is silent, and the job runs all the
    same.
    """
    if not needs_jvm(uri):
        return None
    try:
        return session_web_address(context, uri)
    except ConfigError as err:
        log.info("tasks cannot look who leads the job: uri=%s error=%s", uri, err)
        return None
