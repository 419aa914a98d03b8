"""With which of Java's archives of loaded classes an embedded broker starts.

A broker loads some 7,000 classes; from an archive they come in half the processor time.
"""

from collections.abc import Sequence
from pathlib import Path

from runtime.embedded.shared_classes import SharedClasses, reading_options

__all__ = ["broker_classes", "sharing_options"]

_CHOICES = (
    "-XX:SharedArchiveFile",
    "-XX:ArchiveClassesAtExit",
    "-XX:+AutoCreateSharedArchive",
    "-XX:AOT",
    "-Xshare",
)


def broker_classes(java: Path, jars: Path) -> SharedClasses:
    """What a broker loads whose class path is all jars of one directory."""
    return SharedClasses(program="kafka", java=java, places=(jars,), jars=jars)


def sharing_options(java: Path, jars: Path, jvm_options: Sequence[str]) -> tuple[str, ...]:
    """Java options that name the archive, if there is one. No errors: a start does without.

    Args:
        jvm_options: where these say what is shared, they alone do.
    """
    if any(option.startswith(_CHOICES) for option in jvm_options):
        return ()
    found = broker_classes(java, jars).find()
    return reading_options(found) if found else ()
