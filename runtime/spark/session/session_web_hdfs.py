"""How tasks reach a file system without a JVM: from the configuration of the session's JVM."""

import dataclasses
import logging
import ssl
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyspark import SparkContext

from sluice.runtime.errors import AuthenticationError, ConfigError, StorageError
from sluice.runtime.state.state_files import StateStore
from sluice.runtime.storage.delegation_tokens import DriverTokens, FetchToken
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import absolute_uri, needs_jvm, without_scheme
from sluice.runtime.storage.hadoop_tokens import HadoopLogin
from sluice.runtime.storage.objects.object_file_system import ObjectFileSystem
from sluice.runtime.storage.objects.object_location import ObjectLocation
from sluice.runtime.storage.objects.object_task_files import ObjectTaskFiles
from sluice.runtime.storage.task_files import LocalTaskFiles, TaskFiles
from sluice.runtime.storage.web_hdfs import WebHdfsAddress, web_hdfs_address
from sluice.runtime.storage.web_hdfs_client import WebHdfsTaskFiles

__all__ = ["checkpoint_web_address", "session_web_address", "state_store", "task_files"]

log = logging.getLogger(__name__)

_CA_FILE = "sluice.webhdfs.ca.location"


def session_web_address(context: SparkContext, uri: str) -> WebHdfsAddress:
    """WebHDFS of the file system that ``uri`` names. Driver.

    With Kerberos it holds the file system's tokens; the first one is obtained now.

    Raises:
        ConfigError: Hadoop's configuration has no address of WebHDFS, or names a file of
            authorities that cannot be read.
        AuthenticationError: the driver has no ticket, or the KDC or NameNode refused it.
        StorageUnreachableError: the KDC or NameNode did not answer.
    """
    jvm: Any = context._jvm  # noqa: SLF001 - PySpark has no public way
    conf = context._jsc.hadoopConfiguration()  # noqa: SLF001 - no public way
    hadoop = jvm.org.apache.hadoop
    hadoop.hdfs.HdfsConfiguration.init()  # makes every configuration read hdfs-site.xml, too
    user = hadoop.security.UserGroupInformation.getCurrentUser().getShortUserName()
    address = web_hdfs_address(uri, conf.get, user=user)
    if address.scheme == "https":
        address = dataclasses.replace(address, authorities=_authorities(jvm, conf))
    if hadoop.security.UserGroupInformation.isSecurityEnabled():
        address = dataclasses.replace(address, tokens=_tokens(context, jvm, conf, uri))
    return address


_lock = threading.Lock()
_tokens_of: dict[tuple[str, str], DriverTokens] = {}


def _tokens(context: SparkContext, jvm: Any, conf: Any, uri: str) -> DriverTokens:  # noqa: ANN401 - Java objects
    """The tokens of a file system, one object per application: all sinks share them."""
    key = (str(context.applicationId), urlsplit(uri).netloc or str(conf.get("fs.defaultFS")))
    settings = context.getConf()
    login = HadoopLogin(
        jvm,
        conf,
        uri,
        principal=settings.get("spark.kerberos.principal"),
        keytab=settings.get("spark.kerberos.keytab"),
    )
    with _lock:
        if key not in _tokens_of:
            _tokens_of[key] = DriverTokens(login)
        return _tokens_of[key]


def _authorities(jvm: Any, conf: Any) -> str | None:  # noqa: ANN401 - Java objects
    """PEM text of the authorities that Hadoop's client trusts; None: the system's."""
    file = conf.get(_CA_FILE)
    if file:
        try:
            return Path(file).read_text(encoding="ascii")
        except (OSError, ValueError) as err:
            raise ConfigError(
                "the file of authorities for WebHDFS cannot be read",
                {"setting": f"spark.hadoop.{_CA_FILE}", "file": file, "error": err},
                "Name a PEM file that the driver can read.",
            ) from err
    client = jvm.org.apache.hadoop.conf.Configuration(conf)
    client.addResource(conf.get("hadoop.ssl.client.conf") or "ssl-client.xml")
    prefix = "ssl.client.truststore"
    location = client.get(f"{prefix}.location")
    if not location:
        return None
    store = jvm.java.security.KeyStore.getInstance(client.get(f"{prefix}.type") or "jks")
    stream = jvm.java.io.FileInputStream(location)
    try:
        store.load(stream, client.getPassword(f"{prefix}.password"))
    finally:
        stream.close()
    names = list(jvm.java.util.Collections.list(store.aliases()))
    certificates = [store.getCertificate(each) for each in names if store.isCertificateEntry(each)]
    return "".join(ssl.DER_cert_to_PEM_cert(bytes(each.getEncoded())) for each in certificates)


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
    except (ConfigError, AuthenticationError, StorageError) as err:
        log.info("tasks cannot read the leader record: uri=%s error=%s", fs.uri, err)
        return None


def task_files(
    context: SparkContext, uri: str, *, fetch_token: FetchToken | None = None
) -> TaskFiles:
    """How tasks write to the file system of ``uri``; made in the driver, used in tasks.

    Args:
        fetch_token: by which tasks get newer delegation tokens; None: they are short.

    Raises:
        ConfigError, AuthenticationError, StorageUnreachableError: as `session_web_address`.
    """
    if not needs_jvm(uri):
        return LocalTaskFiles()
    address = session_web_address(context, uri)
    if fetch_token is not None and isinstance(address.tokens, DriverTokens):
        address = dataclasses.replace(address, tokens=address.tokens.for_tasks(fetch_token))
    return WebHdfsTaskFiles(address=address)


def state_store(context: SparkContext, fs: FileSystem, *, fetch_token: FetchToken) -> StateStore:
    """The checkpoint directory for tasks with keyed state; made and checked in the driver.

    Raises:
        ConfigError, AuthenticationError, StorageUnreachableError: as `task_files`.
        UnreachableError: WebHDFS did not answer in time.
    """
    files: TaskFiles
    if isinstance(fs, ObjectFileSystem):
        files = ObjectTaskFiles(fs.location)
    else:
        files = task_files(context, fs.uri, fetch_token=fetch_token)
    files.check()
    return StateStore(files=files, root=without_scheme(absolute_uri(fs.uri)))
