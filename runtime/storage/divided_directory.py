"""A checkpoint directory whose files of Spark lie in another directory."""

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from sluice.runtime.storage.file_system import Entry, FileDigest, FileSystem

__all__ = ["SPARK", "DividedDirectory", "holder_of", "spark_root"]

SPARK = "spark"
"""Directory of Spark's logs and state in a checkpoint directory."""


class DividedDirectory(FileSystem):
    """`FileSystem` of a checkpoint directory; paths below ``spark`` lead to another file system.

    Its user says which of the two it means by the path alone. So a record names Spark's state by
    the same relative path in every job.

    Args:
        main: rooted at the checkpoint directory.
        open_spark: opens the directory that has ``spark`` in place of the other one; called once,
            when a file there is first needed.
    """

    def __init__(self, main: FileSystem, open_spark: Callable[[], FileSystem]) -> None:
        self.uri = main.uri
        self.has_temporaries = main.has_temporaries
        self._main = main
        self._open_spark = open_spark

    @cached_property
    def _spark(self) -> FileSystem:
        return self._open_spark()

    def holder(self, path: str) -> FileSystem:
        """The file system that holds a path."""
        is_sparks = path == SPARK or path.startswith(f"{SPARK}/")
        return self._spark if is_sparks else self._main

    def read(self, path: str) -> bytes | None:
        return self.holder(path).read(path)

    def entries(self, path: str) -> list[Entry]:
        return self.holder(path).entries(path)

    def names(self, path: str, pattern: re.Pattern[str]) -> list[str]:
        return self.holder(path).names(path, pattern)

    def exists(self, path: str) -> bool:
        return self.holder(path).exists(path)

    def write_temporary(self, path: str, data: bytes) -> None:
        self.holder(path).write_temporary(path, data)

    def stage(self, temporary: str, data: bytes) -> None:
        self.holder(temporary).stage(temporary, data)

    def place(self, temporary: str, path: str, data: bytes) -> bool:
        return self.holder(path).place(temporary, path, data)

    def make_durable(self, path: str) -> None:
        self.holder(path).make_durable(path)

    def replace(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        self.holder(path).replace(path, data, is_private=is_private)

    def length_bytes(self, path: str) -> int | None:
        return self.holder(path).length_bytes(path)

    def digest(self, path: str) -> FileDigest | None:
        return self.holder(path).digest(path)

    def copy_from(
        self, source: FileSystem, source_path: str, path: str, *, may_link: bool = False
    ) -> FileDigest:
        return self.holder(path).copy_from(source, source_path, path, may_link=may_link)

    def export(self, path: str, target: Path) -> FileDigest:
        return self.holder(path).export(path, target)

    def make_directories(self, path: str) -> None:
        self.holder(path).make_directories(path)

    def join(self, sources: Sequence[str], path: str) -> int:
        return self.holder(path).join(sources, path)

    def move(self, source: str, path: str) -> bool:
        return self.holder(path).move(source, path)

    def sync_directory(self, path: str) -> None:
        self.holder(path).sync_directory(path)

    def delete(self, path: str) -> None:
        self.holder(path).delete(path)

    def close(self) -> None:
        self._main.close()
        if "_spark" in self.__dict__:
            self._spark.close()


def holder_of(fs: FileSystem, path: str) -> FileSystem:
    """The file system that holds a path of a checkpoint directory, divided or whole."""
    return fs.holder(path) if isinstance(fs, DividedDirectory) else fs


def spark_root(fs: FileSystem) -> str:
    """The URI of the directory that has ``spark`` in it."""
    return holder_of(fs, SPARK).uri
