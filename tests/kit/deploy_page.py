"""The commands of ``docs/guide/deploy.md``, which tests run as they stand but for a few words; and
those of other pages about ``deploy/``."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.kit.kafka.kafka_records import create_topic, produce
from tests.kit.waiting import wait_for

__all__ = [
    "DEPLOY",
    "HIGH_AVAILABILITY",
    "PAGE",
    "ROOT",
    "Copied",
    "commands",
    "make_environment",
    "make_wheels",
    "place",
    "run_commands",
]

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGE = "deploy.md"
HIGH_AVAILABILITY = "high-availability.md"
_BLOCK = re.compile(r"^```sh\n# ([^\n]+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_VERIFY = (sys.executable, "-m", "sluice", "verify", "--bootstrap-servers")
_LONG_S = 1800.0


def commands(page: str = PAGE) -> dict[str, str]:
    """Each block of commands of a guide by its first line, which is a comment."""
    return dict(_BLOCK.findall((ROOT / "docs" / "guide" / page).read_text("utf-8")))


def run_commands(
    title: str,
    replaced: Mapping[str, str] | None = None,
    *,
    directory: Path,
    inside: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    page: str = PAGE,
) -> str:
    """Run a block of a page; its standard output. Every replaced text must be in it."""
    script = commands(page)[title]
    for text, other in (replaced or {}).items():
        assert text in script, f"{title}: the page has no {text!r}"
        script = script.replace(text, other)
    done = subprocess.run(
        [*inside, "bash", "-euo", "pipefail", "-c", script],
        cwd=directory,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LONG_S,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}"
    return done.stdout


def make_environment(place: Path) -> None:
    """A virtual environment with this checkout and the packages of this test run, in no time."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    [packages] = place.glob("lib/python*/site-packages")
    here = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "this_run.pth").write_text("\n".join([str(ROOT), *here]))


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a driver runs: with a virtual environment for it, and an archive for executors."""
    directory = tmp_path_factory.mktemp("deploy")
    make_environment(directory / "driver")
    make_wheels(directory)
    run_commands(
        "Pack the executors' environment", {"python3": sys.executable}, directory=directory
    )
    return directory


def make_wheels(directory: Path, *, extras: str = "spark,cli") -> None:
    """``wheels`` in a directory, as on the page, from this checkout."""
    source = directory / "source"
    source.mkdir()
    for name in (
        "connectors",
        "examples",
        "runtime",
        "sluice",
        "pyproject.toml",
        "setup.py",
        "README.md",
    ):
        subprocess.run(["cp", "-R", "--parents", name, "LICENSE", source], cwd=ROOT, check=True)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*build, directory / "dist", source], check=True, timeout=_LONG_S)
    replaced = {"python3": sys.executable, "[spark,cli]": f"[{extras}]"}
    run_commands("Collect the wheels", replaced, directory=directory)


@dataclass
class Copied:
    """Two topics, and how many records the input has so far.

    Attributes:
        bootstrap: of the broker.
        input, output: the topics.
    """

    bootstrap: str
    input: str = field(init=False)
    output: str = field(init=False)
    _sent: int = 0

    def __post_init__(self) -> None:
        self.input = create_topic(self.bootstrap, partitions=2)
        self.output = create_topic(self.bootstrap, partitions=2)

    @property
    def settings(self) -> dict[str, str]:
        """Lines of ``orders.env`` and the values for this test."""
        return {
            "KAFKA_SERVERS=kafka-1:9092,kafka-2:9092": f"KAFKA_SERVERS={self.bootstrap}",
            "INPUT=orders": f"INPUT={self.input}",
            "OUTPUT=orders-copy": f"OUTPUT={self.output}",
        }

    def write_settings(self, place: Path) -> Path:
        """``orders.env`` with the values for this test."""
        text = (DEPLOY / "orders.env").read_text("utf-8")
        for line, other in self.settings.items():
            assert line in text
            text = text.replace(line, other)
        place.write_text(text)
        return place

    def send(self, count: int = 500) -> None:
        """Add records to the input."""
        numbers = range(self._sent, self._sent + count)
        produce(self.bootstrap, self.input, [b"order %d" % number for number in numbers])
        self._sent += count

    def require_once(self) -> None:
        """Wait until the output has each record once, in order and in its partition."""
        last = ""

        def is_exact() -> bool:
            nonlocal last
            done = subprocess.run(
                [*_VERIFY, self.bootstrap, "--input", self.input, "--output", self.output],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            last = done.stdout + done.stderr
            return done.returncode == 0

        try:
            wait_for(is_exact, poll_s=2.0, what="each record once")
        except AssertionError as err:
            raise AssertionError(f"{err}\n{last}") from err
