"""A file that a checkpoint needs."""

from dataclasses import dataclass

from sluice.runtime.errors import ConfigError

__all__ = ["FileReference", "require_relative"]


def require_relative(path: str, *, what: str) -> None:
    """Refuse a path that would leave the checkpoint directory, or bind the record to its
    location."""
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or ":" in parts[0]:
        raise ConfigError(
            f"a {what} inside a checkpoint must be relative to the checkpoint directory",
            {"path": path},
            "Store the path relative to the checkpoint directory, without '..' and scheme.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReference:
    """A file that a checkpoint needs; length and checksum identify it.

    Attributes:
        path: relative to the checkpoint directory, with ``/``.
        length_bytes: >= 0.
        sha256: of the whole file, 64 lower-case hexadecimal digits.
    """

    path: str
    length_bytes: int
    sha256: str

    def __post_init__(self) -> None:
        require_relative(self.path, what="file")
        is_digest = len(self.sha256) == 64 and set(self.sha256) <= set("0123456789abcdef")
        if not self.path or self.length_bytes < 0 or not is_digest:
            raise ConfigError(
                "a file reference is not valid",
                {"path": self.path, "length_bytes": self.length_bytes, "sha256": self.sha256},
                "Give a path, a length >= 0 and the file's SHA-256 in hexadecimal.",
            )
