"""The long bed runs on demand: ``SLUICE_CHAOS=long pytest tests/chaos``."""

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked ``long`` unless it is asked for."""
    if os.environ.get("SLUICE_CHAOS") == "long":
        return
    long = [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("long")]
