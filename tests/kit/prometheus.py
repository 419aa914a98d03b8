"""Prometheus's own programs, from Debian's package ``prometheus``."""

import os
import shutil
from collections.abc import Mapping
from typing import Any

import pytest

__all__ = ["program", "queries_of"]

_REQUIRED = "SLUICE_REQUIRE_PROMETHEUS"


def program(name: str) -> str:
    """The path of ``promtool`` or ``prometheus``; without it the test is skipped with the reason,
    and with ``SLUICE_REQUIRE_PROMETHEUS=1`` it fails."""
    found = shutil.which(name)
    if found is None:
        reason = f"{name} is missing: install Debian's package prometheus"
        if os.environ.get(_REQUIRED) == "1":
            raise FileNotFoundError(reason)
        pytest.skip(reason)
    return found


def queries_of(dashboard: Mapping[str, Any]) -> list[str]:
    """The queries of a Grafana dashboard for all instances, with a minute for rates."""
    return [
        target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]
