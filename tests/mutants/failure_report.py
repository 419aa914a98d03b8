"""A pytest plugin that records how tests fail: by what they check, or because the program broke.

A mutant that cannot be imported, or that uses an unknown name, proves nothing about the tests.
"""

import json
import traceback
from collections.abc import Generator
from pathlib import Path

import pytest

from sluice.runtime.errors import StreamError


def kind_of(error: BaseException) -> str:
    """``assertion``, the name of a typed error of the product, ``timeout`` or ``crash``.

    A group of errors is a ``crash`` or ``timeout`` if one of them is.
    """
    if isinstance(error, BaseExceptionGroup):
        kinds = [kind_of(each) for each in error.exceptions]
        return next((kind for kind in kinds if kind in ("crash", "timeout")), kinds[0])
    if isinstance(error, pytest.fail.Exception):
        return "timeout" if str(error).startswith("Timeout") else "assertion"
    if isinstance(error, AssertionError) or _is_a_count(error):
        return "assertion"
    return type(error).__name__ if isinstance(error, StreamError) else "crash"


def _is_a_count(error: BaseException) -> bool:
    """A test checks a count by unpacking: ``(only,) = found``."""
    if not isinstance(error, ValueError) or " to unpack (expected " not in str(error):
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and Path(frames[-1].f_code.co_filename).name.startswith("test_")


class FailureReport:
    """Appends a line of JSON to a file for each failure."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: "pytest.CallInfo[None]"
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """A failure in a fixture counts as a crash."""
        report = yield
        if report.failed and call.excinfo is not None:
            error = call.excinfo.value
            kind = kind_of(error) if call.when == "call" else "crash"
            self._append(item.nodeid, kind, f"{type(error).__name__}: {error}"[:500])
        return report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A test module that cannot be imported counts as a crash."""
        if report.failed:
            self._append(report.nodeid, "crash", str(report.longrepr)[-500:])

    def _append(self, test: str, kind: str, text: str) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"test": test, "kind": kind, "text": text}) + "\n")
