"""Finds a Java that is new enough, and its tools."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from sluice.runtime.errors import MissingRequirementError

__all__ = ["MINIMUM_VERSION", "Java", "find_java", "parse_version"]

MINIMUM_VERSION = 17
_REMEDY = (
    f"Install a JDK or JRE of version {MINIMUM_VERSION} or newer (Debian: "
    f"openjdk-{MINIMUM_VERSION}-jdk-headless), or let JAVA_HOME name one."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java that ran and printed its version.

    Attributes:
        executable: the ``java`` program, links resolved.
        version: feature release, e.g. 17.
    """

    executable: Path
    version: int


def parse_version(banner: str) -> int | None:
    """Feature release in the output of ``java -version``; None if it has none.

    Until version 8 the scheme was ``1.8.0``, later ``17.0.15``.
    """
    found = re.search(r'version "(\d+)(?:\.(\d+))?', banner)
    if found is None:
        return None
    first = int(found[1])
    return int(found[2] or 0) if first == 1 else first


def find_java() -> Java:
    """The Java of JAVA_HOME, else the one on PATH, at least `MINIMUM_VERSION`.

    Raises:
        MissingRequirementError: neither exists, or both are too old.
    """
    return _find(os.environ.get("JAVA_HOME"), os.environ.get("PATH"))


@lru_cache(maxsize=8)
def _find(java_home: str | None, path: str | None) -> Java:
    candidates = [Path(java_home) / "bin" / "java"] if java_home else []
    on_path = shutil.which("java", path=path)
    if on_path:
        candidates.append(Path(on_path))
    seen: dict[str, object] = {}
    for candidate in candidates:
        version = _version_of(candidate)
        if version is not None and version >= MINIMUM_VERSION:
            return Java(executable=candidate.resolve(), version=version)
        seen[str(candidate)] = version if version is not None else "does not run"
    raise MissingRequirementError(
        f"Java {MINIMUM_VERSION} or newer was not found",
        seen or {"java": "not on PATH", "JAVA_HOME": java_home or "unset"},
        _REMEDY,
    )


def _version_of(executable: Path) -> int | None:
    try:
        answer = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=120, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(answer.stderr)
