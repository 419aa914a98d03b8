"""A pytest plugin that writes down how tests failed: by what they check, or by a broken program.

A mutant that cannot be imported, or that trips over a name, proves nothing about the tests.
"""

import json
import os
import traceback
from collections.abc import Generator
from pathlib import Path

import pytest

from sluice.runtime.errors import StreamError

__all__ = ["REPORT", "kind_of"]

REPORT = "SLUICE_MUTANT_REPORT"
"""Environment variable: the file that gets one line of JSON for each failure."""


def kind_of(error: BaseException) -> str:
    """``assertion``, the name of a typed error of the product, ``timeout`` or ``crash``.

    Of several errors at once the worst one tells.
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
    """``(only,) = found``, in a test: its way to say how many there must be."""
    if not isinstance(error, ValueError) or " to unpack (expected " not in str(error):
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and Path(frames[-1].f_code.co_filename).name.startswith("test_")


def _note(test: str, kind: str, text: str) -> None:
    with Path(os.environ[REPORT]).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"test": test, "kind": kind, "text": text}) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: "pytest.CallInfo[None]"
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure in a fixture is none of the test."""
    report = yield
    if report.failed and call.excinfo is not None:
        error = call.excinfo.value
        kind = kind_of(error) if call.when == "call" else "crash"
        _note(item.nodeid, kind, f"{type(error).__name__}: {error}"[:500])
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A module that cannot be imported."""
    if report.failed:
        _note(report.nodeid, "crash", str(report.longrepr)[-500:])
