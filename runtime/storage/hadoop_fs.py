"""Files of Hadoop's `FileSystem`, in a JVM that the caller owns; rename publishes.

HDFS renames a synced file to an absent name in one atomic step, and answers false for a taken name.
After false or no answer, both names are checked (`publish-whole` and `rename-settled`).
"""

import contextlib
import re
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from sluice.runtime.errors import StorageError, StreamError
from sluice.runtime.storage.divided_directory import holder_of
from sluice.runtime.storage.file_system import Entry, FileDigest, FileSystem
from sluice.runtime.storage.hadoop_errors import exceptions_of, failure_kind, telling, typed
from sluice.runtime.storage.local_fs import LocalFileSystem

__all__ = ["HadoopFileSystem"]

# Hadoop's defaults wait up to 15 minutes for a dead NameNode, and 3 minutes (measured) until one of
# two is active. At the close of a small file they wait 0.4 s for the report of its block. A user's
# settings in a site file stay.
_BOUNDS = {
    "ipc.client.connect.timeout": "5000",
    "ipc.client.connect.max.retries": "3",
    "ipc.client.connect.max.retries.on.timeouts": "2",
    "ipc.client.rpc-timeout.ms": "10000",
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.max.millis": "2000",
    "dfs.client.retry.max.attempts": "3",
    "dfs.client.socket-timeout": "10000",
    "dfs.client.datanode-restart.timeout": "10",
    "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "20",
    "dfs.client.block.write.locateFollowingBlock.retries": "10",
}
_COPY_BYTES = 1 << 20
_BUFFER_BYTES = 4096
_ABSENT = ("FileNotFoundException",)
_BRIDGES = ("py4j", "pyspark")


class HadoopFileSystem(FileSystem):
    """`sluice.runtime.storage.file_system.FileSystem` below one directory of HDFS.

    Driver or command line, the process with the gateway. It has a client of its own, so it neither
    uses nor closes Spark's cached client with Spark's time-outs.
    """

    def __init__(self, uri: str, jvm: Any) -> None:  # noqa: ANN401 - py4j's view
        self._jvm = jvm
        self.uri = uri.rstrip("/")
        self._opened: Any = None
        self._opening = threading.Lock()  # two first threads open one client

    def read(self, path: str) -> bytes | None:
        with self._translated("read", path):
            try:
                stream = self._fs.open(self._at(path))
            except Py4JError as error:
                if _names(error, _ABSENT):
                    return None
                raise
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def entries(self, path: str) -> list[Entry]:
        with self._translated("list", path):
            entries = (
                Entry(
                    name=status.getPath().getName(),
                    is_directory=status.isDirectory(),
                    length_bytes=status.getLen(),
                    changed_ms=status.getModificationTime(),
                )
                for status in self._listed(path)
            )
            return sorted(entries, key=lambda entry: entry.name)

    def names(self, path: str, pattern: re.Pattern[str]) -> list[str]:
        """See `FileSystem.names`; a dozen calls into the JVM for any number of names."""
        with self._translated("list", path):
            found = self._listed(path)
            if not found:
                return []
            text = self._text_of(self._jvm.org.apache.hadoop.fs.FileUtil.stat2Paths(found))
            return re.findall(rf"/({pattern.pattern})(?=, |\]$)", text)

    def _text_of(self, items: Any) -> str:  # noqa: ANN401 - py4j's view
        """``Arrays.toString``, which Py4J finds only for an array of plain objects."""
        java = self._jvm.java.lang
        kinds = java.reflect.Array.newInstance(java.Class.forName("java.lang.Class"), 1)
        java.reflect.Array.set(kinds, 0, java.Class.forName("[Ljava.lang.Object;"))
        arguments = java.reflect.Array.newInstance(java.Class.forName("java.lang.Object"), 1)
        java.reflect.Array.set(arguments, 0, items)
        to_string = java.Class.forName("java.util.Arrays").getMethod("toString", kinds)
        return str(to_string.invoke(None, arguments))

    def _listed(self, path: str) -> Any:  # noqa: ANN401 - py4j's view
        """Hadoop's own list of a directory."""
        try:
            return self._fs.listStatus(self._at(path))
        except Py4JError as error:
            if _names(error, _ABSENT):
                return ()
            raise

    def exists(self, path: str) -> bool:
        with self._translated("look up", path):
            return bool(self._fs.exists(self._at(path)))

    def write_temporary(self, path: str, data: bytes) -> None:
        """See `FileSystem.write_temporary`: on disk at the DataNodes before it returns."""
        with self._translated("write", path):
            self._write(self._fs.create(self._at(path), True), data)

    def _write(self, stream: Any, data: bytes) -> None:  # noqa: ANN401 - a Java object
        try:
            stream.write(data)
            stream.hsync()
        finally:
            stream.close()

    def _private_stream(self, path: str) -> Any:  # noqa: ANN401 - a Java object
        """The stream of a new file whose mode is set while it is empty, for any umask."""
        fs, at = self._fs, self._at(path)
        mode = self._jvm.org.apache.hadoop.fs.permission.FsPermission("600")
        replication, block = fs.getDefaultReplication(at), fs.getDefaultBlockSize(at)
        stream = fs.create(at, mode, True, _BUFFER_BYTES, replication, block, None)
        fs.setPermission(at, mode)  # a umask can only have taken from it
        return stream

    def place(self, temporary: str, path: str, data: bytes) -> bool:
        with self._translated("publish", path):
            if self._fs.rename(self._at(temporary), self._at(path)):
                return True
            if self._fs.exists(self._at(path)):
                return False
        raise StorageError(
            "the NameNode refused to rename, although the name is free",
            {"uri": self.uri, "path": path},
            "Retry; if it fails again, read the NameNode's log.",
        )

    def make_durable(self, path: str) -> None:
        """See `FileSystem.make_durable`: the NameNode answers after its edit log is durable."""

    def replace(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        directory, _, name = path.rpartition("/")
        temporary = f"{directory}/.{name}.{uuid.uuid4().hex}.tmp".lstrip("/")
        try:
            if is_private:
                with self._translated("write", path):
                    self._write(self._private_stream(temporary), data)
            else:
                self.write_temporary(temporary, data)
            with self._translated("write", path):
                self._fs.rename(self._at(temporary), self._at(path), self._overwriting())
        except BaseException:
            with contextlib.suppress(StreamError):
                self.delete(temporary)  # without a DataNode the name still exists
            raise

    def length_bytes(self, path: str) -> int | None:
        with self._translated("look up", path):
            try:
                status = self._fs.getFileStatus(self._at(path))
            except Py4JError as error:
                if _names(error, _ABSENT):
                    return None
                raise
            return None if status.isDirectory() else int(status.getLen())

    def digest(self, path: str) -> FileDigest | None:
        """See `FileSystem.digest`: the JVM reads the bytes, as in the calls below."""
        with self._translated("read", path):
            try:
                source = self._fs.open(self._at(path))
            except Py4JError as error:
                if _names(error, _ABSENT):
                    return None
                raise
            return self._copied(source, self._jvm.java.io.OutputStream.nullOutputStream())

    def copy_from(
        self, source: FileSystem, source_path: str, path: str, *, may_link: bool = False
    ) -> FileDigest:
        source = holder_of(source, source_path)
        with self._translated("copy a file", path):
            opened = self._stream_of(source, source_path)
            with contextlib.closing(self._fs.create(self._at(path), True)) as target:
                digest = self._copied(opened, target)
                target.hsync()
                return digest

    def export(self, path: str, target: Path) -> FileDigest:
        with self._translated("copy a file", path):
            opened = self._fs.open(self._at(path))
            with contextlib.closing(self._jvm.java.io.FileOutputStream(str(target))) as file:
                digest = self._copied(opened, file)
                file.getFD().sync()
                return digest

    def _stream_of(self, source: FileSystem, path: str) -> Any:  # noqa: ANN401 - a Java object
        if isinstance(source, HadoopFileSystem):
            return source._fs.open(source._at(path))  # noqa: SLF001 - its own class
        if isinstance(source, LocalFileSystem):
            return self._jvm.java.io.FileInputStream(str(source.host_path(path)))
        return self._jvm.java.io.ByteArrayInputStream(source.read(path))

    def _copied(self, source: Any, target: Any) -> FileDigest:  # noqa: ANN401 - Java streams
        """Read a stream to its end, close it, and write its bytes to the other one."""
        security = self._jvm.java.security
        sha256 = security.MessageDigest.getInstance("SHA-256")
        with contextlib.closing(security.DigestInputStream(source, sha256)) as read:
            length_bytes = int(read.transferTo(target))
        return FileDigest(length_bytes=length_bytes, sha256=bytes(sha256.digest()).hex())

    def make_directories(self, path: str) -> None:
        with self._translated("make a directory", path):
            self._fs.mkdirs(self._at(path))

    def join(self, sources: Sequence[str], path: str) -> int:
        """See `FileSystem.join`: the bytes pass only through the JVM."""
        copy = self._jvm.org.apache.hadoop.io.IOUtils.copyBytes
        with (
            self._translated("join files", path),
            contextlib.closing(self._fs.create(self._at(path), True)) as joined,
        ):
            for source in sources:
                with contextlib.closing(self._fs.open(self._at(source))) as part:
                    copy(part, joined, _COPY_BYTES, False)
            joined.hsync()
            return int(joined.getPos())

    def move(self, source: str, path: str) -> bool:
        """See `FileSystem.move`: false also means that the source is absent."""
        with self._translated("move a file", path):
            return bool(self._fs.rename(self._at(source), self._at(path)))

    def sync_directory(self, path: str) -> None:
        """See `FileSystem.sync_directory`: the NameNode answers after its edit log is durable."""

    def delete(self, path: str) -> None:
        """See `FileSystem.delete`: one step at the NameNode."""
        with self._translated("delete", path):
            self._fs.delete(self._at(path), True)

    def close(self) -> None:
        """See `FileSystem.close`: ends the client, not the JVM."""
        with self._opening:
            opened, self._opened = self._opened, None
        if opened is not None:
            with self._translated("close", ""):
                opened.close()

    def _overwriting(self) -> Any:  # noqa: ANN401 - a Java array
        """``new Options.Rename[] {OVERWRITE}``; py4j has no variable arguments."""
        java = self._jvm.java.lang
        kind = java.Class.forName("org.apache.hadoop.fs.Options$Rename")
        options = java.reflect.Array.newInstance(kind, 1)
        java.reflect.Array.set(options, 0, self._jvm.org.apache.hadoop.fs.Options.Rename.OVERWRITE)
        return options

    @property
    def _fs(self) -> Any:  # noqa: ANN401 - a Java object
        with self._opening:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def _open(self) -> Any:  # noqa: ANN401 - a Java object
        hadoop = self._jvm.org.apache.hadoop
        # Registers hdfs-default.xml and hdfs-site.xml before settings' origins are read.
        hadoop.hdfs.HdfsConfiguration.init()
        conf = hadoop.conf.Configuration(self._user_configuration())
        for name, value in _BOUNDS.items():
            if _is_default(conf, name):
                conf.set(name, value)
        return hadoop.fs.FileSystem.newInstance(self._at("").toUri(), conf)

    def _user_configuration(self) -> Any:  # noqa: ANN401 - a Java object
        """Spark's configuration with ``spark.hadoop.*``, if a session runs; else that of the
        site files."""
        companion = getattr(self._jvm.org.apache.spark, "SparkContext$")
        active = getattr(companion, "MODULE$").getActive()
        if active.isDefined():
            return active.get().hadoopConfiguration()
        return self._jvm.org.apache.hadoop.conf.Configuration()

    def _at(self, path: str) -> Any:  # noqa: ANN401 - a Java object
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.uri}/{path}" if path else self.uri)

    @contextlib.contextmanager
    def _translated(self, action: str, path: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not _is_from_java(error):
                raise
            chain = exceptions_of(error)
            where = {"uri": self.uri, "path": path, "error": str(telling(chain))}
            raise typed(
                failure_kind(chain), f"{action} in a directory of the job", where
            ) from error


def _is_default(conf: Any, name: str) -> bool:  # noqa: ANN401 - a Java object
    sources = conf.getPropertySources(name)
    return sources is None or all(str(source).endswith("-default.xml") for source in sources)


def _is_from_java(error: Exception) -> bool:
    """Whether Java raised it; in a SparkSession PySpark converts some Java exceptions."""
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _BRIDGES


def _names(error: BaseException, names: tuple[str, ...]) -> bool:
    if not isinstance(error, Py4JJavaError):
        return type(error).__name__ in names
    found: Any = error.java_exception
    return str(found.getClass().getSimpleName()) in names
