"""Fixtures of all tests; each kind of server has its own module.

What is marked ``extended`` runs for every change, by ``make test-more`` behind ``make test``, which
has fifteen minutes on two cores; what is marked ``long`` runs on demand:
``SLUICE_CHAOS=long pytest …``, and of that CI runs what is marked ``slice``.
"""

import os
import signal

import pytest
from hypothesis import settings

from tests.hdfs_fixture import hadoop_client, hdfs
from tests.kafka_fixture import (
    hot_path,
    kafka,
    kafka_by_level,
    leveled_kafka,
    older_kafka,
    secure_kafka,
    topic,
)
from tests.scratch import close_scratch, open_scratch
from tests.spark_fixture import spark

__all__ = [
    "hadoop_client",
    "hdfs",
    "hot_path",
    "kafka",
    "kafka_by_level",
    "leveled_kafka",
    "older_kafka",
    "secure_kafka",
    "spark",
    "topic",
]

# How long an example takes says how busy the machine is; pytest-timeout catches what hangs.
settings.register_profile("sluice", deadline=None, print_blob=True)
settings.load_profile("sluice")


def pytest_configure(config: pytest.Config) -> None:
    """Before anything starts a process."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # In the background of a script; programs that tests interrupt would ignore it, too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    open_scratch(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """After the last fixture has ended what it started."""
    close_scratch(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked ``long`` unless it is asked for."""
    if os.environ.get("SLUICE_CHAOS") == "long":
        return
    long = [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("long")]
