"""A cell runs on this machine, or in a directory tree of Debian 13 made by ``debootstrap``.

Debian 13 brings Python 3.13 and Java 21. The tree sees the checkout and Sluice's cache under their
own paths, by mounts in a name space of its own, so nothing is left mounted. It needs root.
"""

import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.runtime.embedded.cache import cache_dir
from sluice.runtime.embedded.java import parse_version
from tools.versions.cells import Cell

__all__ = ["NoPlaceError", "Place", "place_for"]

_ROOT = Path(__file__).parents[2]
_SUITE, _PYTHON, _JAVA = "trixie", "3.13", 21
_PACKAGES = "python3,python3-venv,openjdk-21-jdk-headless,gcc,libc6-dev,procps,ca-certificates"
_ANSWER_S = 120
_BUILD_S = 3600
_OWN = "sluice-spark["
# Extras and packages of `dev` that no test of a cell needs; PySpark comes as the cell says.
_NOT_NEEDED = re.compile(
    r"(pyspark|coverage|import-linter|ipykernel|mkdocs|mypy|nbclient|playwright|ruff|types-)"
)


# Sluice names this process's Python to Spark; the wheels are in a directory of this machine.
_OF_THIS_PYTHON = ("PYSPARK_", "SPARK_HOME", "VIRTUAL_ENV", "PIP_FIND_LINKS")


class NoPlaceError(Exception):
    """Why a cell cannot run here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A Python and a Java.

    Attributes:
        python: makes virtual environments.
        java_home: of the Java.
        tree: root directory that both paths are in; None: this machine's.
        cache: for environments.
    """

    python: str
    java_home: str
    tree: Path | None
    cache: Path

    @property
    def system(self) -> str:
        """Name of the Linux distribution."""
        text = Path(f"{self.tree or ''}/etc/os-release").read_text("utf-8")
        found = re.search(r'^PRETTY_NAME="?([^"\n]*)', text, re.MULTILINE)
        return found[1] if found else "Linux"

    def call(self, command: Sequence[str], **settings: str) -> int:
        """Run a command of the place in the checkout, with its output; return its exit code."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(_OF_THIS_PYTHON)}
        environment |= {"JAVA_HOME": self.java_home, "SLUICE_CACHE": str(cache_dir())}
        environment |= {"PATH": f"{self.java_home}/bin:{_path(self.tree)}", **settings}
        return subprocess.run(
            [*self._inside(), *command], cwd=_ROOT, env=environment, check=False
        ).returncode

    def environment(self, pyspark: str) -> tuple[str, str]:
        """The Python of a virtual environment, and ``PYTHONPATH`` with PySpark and the checkout."""
        release = "debian-13" if self.tree else "host"
        name = f"{release}-{Path(self.python).name}"
        venv, spark = self.cache / name, self.cache / f"pyspark-{pyspark}"
        python = str(venv / "bin" / "python")
        if not (venv / "pyvenv.cfg").exists():
            self._require([self.python, "-m", "venv", str(venv)])
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        self._require([*pip, *_requirements()])
        # Its entry points name connectors and commands; the code comes from the checkout.
        self._require([*pip, "--no-deps", "--force-reinstall", str(_ROOT)])
        if not (spark / "pyspark").exists():
            self._require([*pip, "--target", str(spark), f"pyspark=={pyspark}"])
        return python, f"{spark}{os.pathsep}{_ROOT}"

    def _require(self, command: Sequence[str]) -> None:
        if self.call(command):
            raise NoPlaceError(f"this command failed: {shlex.join(command)}")

    def _inside(self) -> list[str]:
        if self.tree is None:
            return []
        shared = {str(_ROOT), str(cache_dir().resolve())}
        tree = str(self.tree)
        lines = [
            f"mount --rbind /dev {tree}/dev",
            f"mount -t proc proc {tree}/proc",
            *(f"mkdir -p {tree}{place}" for place in shared),
            *(f"mount --bind {place} {tree}{place}" for place in shared),
            *(f"cp -L {file} {tree}{file}" for file in _SHARED_FILES if Path(file).exists()),
            f'exec chroot {tree} sh -c \'cd {_ROOT} && exec "$@"\' in "$@"',
        ]
        script = " && ".join(lines)
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "in"]


# Names of hosts, and the authorities that this machine trusts.
_SHARED_FILES = ("/etc/hosts", "/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt")


def place_for(cell: Cell) -> Place:
    """Find or make the place of a cell.

    Raises:
        NoPlaceError: neither this machine nor Debian 13 has its Python and its Java.
    """
    cache = cache_dir() / "versions"
    cache.mkdir(parents=True, exist_ok=True)
    python, java = _python(cell.python), _java_home(cell.java)
    if python is not None and java is not None:
        return Place(python=python, java_home=java, tree=None, cache=cache)
    if (cell.python, cell.java) != (_PYTHON, _JAVA):
        missing = f"Python {cell.python}" if python is None else f"Java {cell.java}"
        raise NoPlaceError(f"{missing} is not installed")
    home = "/usr/lib/jvm/java-21-openjdk-amd64"
    return Place(python="/usr/bin/python3.13", java_home=home, tree=_debian(cache), cache=cache)


def _debian(cache: Path) -> Path:
    tree = cache / "debian-13"
    if (tree / "usr/bin/python3.13").exists():
        return tree
    if os.geteuid() or shutil.which("debootstrap") is None:
        raise NoPlaceError("Debian 13 needs root, and debootstrap (Debian: debootstrap)")
    made = tree.with_name("debian-13.new")
    shutil.rmtree(made, ignore_errors=True)  # of a run that was stopped
    command = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", _SUITE]
    done = subprocess.run([*command, str(made)], capture_output=True, timeout=_BUILD_S, check=False)
    if done.returncode:
        raise NoPlaceError(f"debootstrap failed: {done.stdout[-300:].decode(errors='replace')}")
    return made.rename(tree)


def _python(version: str) -> str | None:
    """A Python of this machine that runs; a shim of pyenv may not."""
    for name in _programs(f"python{version}", f"~/.pyenv/versions/{version}*/bin/python{version}"):
        if f"Python {version}." in _output(name, "-V"):
            return name
    return sys.executable if sys.version_info[:2] == tuple(map(int, version.split("."))) else None


def _java_home(version: int) -> str | None:
    given = os.environ.get("JAVA_HOME")
    for name in _programs(
        *((f"{given}/bin/java",) if given else ()), "java", "/usr/lib/jvm/*/bin/java"
    ):
        if parse_version(_output(name, "-version")) == version:
            return str(Path(name).resolve().parents[1])
    return None


def _programs(*patterns: str) -> Iterator[str]:
    for pattern in patterns:
        found = shutil.which(pattern)
        yield from [found] if found else sorted(glob.glob(os.path.expanduser(pattern)))  # noqa: PTH111, PTH207 - a pattern with a home directory


def _output(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def _path(tree: Path | None) -> str:
    return os.environ["PATH"] if tree is None else "/usr/sbin:/usr/bin:/sbin:/bin"


def _requirements() -> list[str]:
    """Packages that Sluice and its tests need, without PySpark."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    found = list(project["dependencies"])

    def add(names: Sequence[str]) -> None:
        for text in names:
            if text.startswith(_OWN):
                for extra in text.removeprefix(_OWN).partition("]")[0].split(","):
                    add(extras[extra])
            elif not _NOT_NEEDED.match(text):
                found.append(text)

    add(extras["dev"])
    return found
