"""The page of the protocol names the modules that an epoch enters."""

import subprocess
import sys
from pathlib import Path

from tests.kit.threads.epoch_modules import BEGIN, END, PAGE

_ROOT = Path(__file__).parents[2]
_PROGRAM = "from tests.kit.threads.epoch_modules import table; print(table(), end='')"


def test_the_page_names_the_modules_that_an_epoch_enters() -> None:
    """In a process without other threads: those of open queries would take turns, too."""
    found = subprocess.run(
        [sys.executable, "-c", _PROGRAM], cwd=_ROOT, capture_output=True, check=True, text=True
    )
    _, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    assert rest.partition(END)[0] == found.stdout
