"""Jars of servers, downloaded once per user by PySpark's own Ivy, with pinned checksums.

A user needs no Maven and no Docker: PySpark ships the resolver as a jar. A download is accepted
only if every file has the SHA-256 that the repository pins.
"""

import hashlib
import importlib.resources
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.runtime.embedded.cache import cache_dir, exclusive
from sluice.runtime.embedded.java import Java, find_java
from sluice.runtime.errors import MissingRequirementError

__all__ = [
    "Artifact",
    "Bundle",
    "fetch",
    "ivy_description",
    "parse_checksums",
    "pinned_checksums",
    "pyspark_jars",
    "report_to_stderr",
]

_SETTINGS_VARIABLE = "SLUICE_IVY_SETTINGS"
_FETCH_S = 900.0
_HEADINGS = ("::::", ":: problems")  # of Ivy's output: ":::: ERRORS" names no error


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One Maven coordinate; with ``transitive`` also its run-time dependencies.

    Attributes:
        archive: classifier and extension of a file that is no jar, e.g. ``("all", "tar.gz")``.
    """

    organisation: str
    name: str
    version: str
    transitive: bool = True
    archive: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The files of one server, most often its class path.

    Attributes:
        name: also its directory in the cache, e.g. ``kafka-4.3.1``.
        artifacts: to download.
        checksums: SHA-256 in hex by file name; the directory gets exactly these files.
    """

    name: str
    artifacts: tuple[Artifact, ...]
    checksums: Mapping[str, str]


def report_to_stderr(line: str) -> None:
    """Print one line for a step."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def parse_checksums(text: str) -> dict[str, str]:
    """File name to SHA-256, from the output of ``sha256sum``."""
    pairs = (line.split(maxsplit=1) for line in text.splitlines() if line.strip())
    return {name.strip().lstrip("*"): digest.lower() for digest, name in pairs}


def pinned_checksums(bundle_name: str) -> dict[str, str]:
    """The checksums that this package ships for a bundle."""
    file = importlib.resources.files("sluice.runtime.embedded") / f"{bundle_name}.sha256"
    return parse_checksums(file.read_text(encoding="ascii"))


def pyspark_jars() -> Path:
    """Directory of the jars of the installed PySpark, without importing it."""
    spec = importlib.util.find_spec("pyspark")
    for location in (spec.submodule_search_locations or []) if spec else []:
        jars = Path(location) / "jars"
        if jars.is_dir():
            return jars
    raise MissingRequirementError(
        "PySpark with its jars is not installed here",
        {"python": sys.executable},
        "Install it with pip (pip install pyspark), not the client-only package.",
    )


def fetch(bundle: Bundle) -> Path:
    """Directory with exactly the bundle's files; downloads them if this user has none yet.

    Any number of processes may call it at once: one downloads, the rest wait. The directory appears
    as a whole, by one rename, or not at all.

    Raises:
        MissingRequirementError: no Java, no network, or a file with another checksum.
    """
    target = cache_dir() / bundle.name
    if _is_whole(target, bundle):
        return target
    with exclusive(cache_dir() / f"{bundle.name}.lock", timeout_s=_FETCH_S):
        if not _is_whole(target, bundle):
            _fetch_into(target, bundle, find_java())
    return target


def _is_whole(directory: Path, bundle: Bundle) -> bool:
    return all((directory / name).is_file() for name in bundle.checksums)


def _fetch_into(target: Path, bundle: Bundle, java: Java) -> None:
    report_to_stderr(
        f"Fetching {bundle.name} ({len(bundle.checksums)} files), once per user, to {target}"
    )
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{bundle.name}-") as scratch:
        found, made = Path(scratch) / "found", Path(scratch) / "made"
        made.mkdir()
        _run_ivy(bundle, java, found)
        for name, digest in bundle.checksums.items():
            _check(bundle, found / name, digest)
            (found / name).rename(made / name)
        if target.exists():  # incomplete: files in the cache were deleted
            shutil.rmtree(target)
        made.rename(target)
    report_to_stderr(f"Fetched {bundle.name}; all checksums are correct")


def _check(bundle: Bundle, file: Path, digest: str) -> None:
    actual = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "absent"
    if actual != digest:
        raise MissingRequirementError(
            f"a downloaded file of {bundle.name} has a wrong checksum",
            {"file": file.name, "sha256": actual, "pinned": digest},
            "Try again: nothing was kept. If it repeats, do not trust the repository, or correct "
            f"{_SETTINGS_VARIABLE}.",
        )


def ivy_description(bundle: Bundle) -> str:
    """The bundle as an Ivy module, so that one run resolves all artifacts together."""
    lines = [
        f'    <dependency org="{artifact.organisation}" name="{artifact.name}" '
        f'rev="{artifact.version}" conf="default->default" '
        f'transitive="{str(artifact.transitive).lower()}">{_file(artifact)}</dependency>'
        for artifact in bundle.artifacts
    ]
    return "\n".join(
        [
            '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">',
            f'  <info organisation="sluice" module="{bundle.name}"/>',
            '  <configurations><conf name="default"/></configurations>',
            "  <dependencies>",
            *lines,
            "  </dependencies>",
            "</ivy-module>",
        ]
    )


def _file(artifact: Artifact) -> str:
    if artifact.archive is None:
        return ""
    classifier, extension = artifact.archive
    return (
        f'<artifact name="{artifact.name}" type="{extension}" ext="{extension}" '
        f'm:classifier="{classifier}"/>'
    )


def _run_ivy(bundle: Bundle, java: Java, found: Path) -> None:
    found.mkdir()
    description = found.with_name("ivy.xml")
    description.write_text(ivy_description(bundle), encoding="utf-8")
    settings = os.environ.get(_SETTINGS_VARIABLE)
    command = [
        *(java.executable, "-cp", f"{pyspark_jars()}/*", "org.apache.ivy.Main"),
        *(("-settings", settings) if settings else ()),
        *("-warn", "-cache", cache_dir() / "ivy", "-ivy", description, "-confs", "default"),
        *("-retrieve", f"{found}/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_FETCH_S, check=False
        )
    except subprocess.TimeoutExpired as err:
        raise _not_fetched(bundle, f"no end after {_FETCH_S:.0f} s") from err
    if answer.returncode or not any(found.iterdir()):
        raise _not_fetched(bundle, _reason(answer.stdout + answer.stderr))


def _reason(output: str) -> str:
    """The most useful line of Ivy's output."""
    lines = [line.strip() for line in output.splitlines() if line.strip(" :\t|-")]
    lines = [line for line in lines if not line.startswith(_HEADINGS)]
    for sign in ("UnknownHost", "refused", "timed out", "error", "not found"):
        for line in lines:
            if sign.lower() in line.lower():
                return line
    return lines[-1] if lines else "Ivy said nothing"


def _not_fetched(bundle: Bundle, reason: str) -> MissingRequirementError:
    return MissingRequirementError(
        f"{bundle.name} could not be downloaded",
        {"reason": reason, "cache": cache_dir()},
        "Check the network: the first start needs it. With a proxy set "
        "JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=... -Dhttps.proxyPort=...; for a mirror let "
        f"{_SETTINGS_VARIABLE} name an Ivy settings file; or copy a filled cache directory.",
    )
