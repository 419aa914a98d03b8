"""Where tasks, which have no JVM, reach HDFS: as the session's own JVM is configured."""

from typing import Any

from pyspark import SparkContext

from runtime.storage.web_hdfs import WebHdfsAddress, web_hdfs_address

__all__ = ["session_web_address"]


def session_web_address(context: SparkContext, uri: str) -> WebHdfsAddress:
    """WebHDFS of the file system that ``uri`` names. Driver.

    Raises:
        ConfigError: Hadoop's configuration asks for what such tasks do not have, or does not say
            where WebHDFS answers.
    """
    jvm: Any = context._jvm  # noqa: SLF001 - PySpark has no public way
    conf = context._jsc.hadoopConfiguration()  # noqa: SLF001
    hadoop = jvm.org.apache.hadoop
    hadoop.hdfs.HdfsConfiguration.init()  # makes every configuration read hdfs-site.xml, too
    user = hadoop.security.UserGroupInformation.getCurrentUser().getShortUserName()
    return web_hdfs_address(uri, conf.get, user=user)
