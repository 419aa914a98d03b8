"""Checks an installation without extras; `tools.wheels` runs it in a fresh environment."""

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import sluice
from sluice.connectors.kafka.native.library import NativeLibrary, built_file

__all__ = ["main"]


def main(path: str) -> None:
    """Check all; ``path`` is how records move here: ``native`` or ``plain``."""
    assert sluice.Job.__name__ == "Job"
    assert sluice.KafkaSource.__name__ == "KafkaSource"
    library = built_file()
    assert (library is not None) == (path == "native"), library
    if library is not None:
        NativeLibrary(library)  # loads it, and binds librdkafka's functions
    _refused("spark", lambda: sluice.install)
    _refused("local", lambda: importlib.import_module("sluice.local"))
    command = Path(sys.executable).with_name("sluice")
    done = subprocess.run([command, "demo"], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done
    assert done.stderr.endswith("Install sluice-spark[cli].\n"), done.stderr


def _refused(extra: str, use: Callable[[], object]) -> None:
    try:
        use()
    except sluice.MissingRequirementError as error:
        told = str(error)
    else:
        told = "nothing is missing"
    assert told.endswith(f"Install sluice-spark[{extra}]."), told


if __name__ == "__main__":
    main(sys.argv[1])
