"""Fixtures of all tests; each kind of server has its own module.

``make test`` takes about fifteen minutes on two cores. ``make test-more`` runs the tests with the
mark ``extended``. Tests with the mark ``long`` run on demand: ``SLUICE_CHAOS=long pytest …``. CI
runs those of them that also have the mark ``slice``.

``SLUICE_EXTENDED=1/3`` takes a third of the tests with the mark ``extended``. CI takes one part, by
the commit, and all container tests.
"""

import logging
import os
import signal
from collections.abc import Collection, Iterator
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from sluice.runtime.embedded import ports
from tests.kit.deploy_page import place
from tests.kit.effort import examples
from tests.kit.files.hdfs_fixture import hadoop_client, hasty_hadoop_client, hdfs
from tests.kit.iceberg.rest_catalog import iceberg_jvm, rest_catalog
from tests.kit.kafka.kafka_fixture import (
    hot_path,
    kafka,
    kafka_by_level,
    leveled_kafka,
    older_kafka,
    secure_kafka,
    topic,
)
from tests.kit.kafka.played_wire import wire_over
from tests.kit.kafka.registry_server import registry_server
from tests.kit.kerberos.realm import realm
from tests.kit.objects.azurite import azure, azurite
from tests.kit.objects.s3_fixture import s3, s3_endpoint, s3_environment, s3_proxied
from tests.kit.scratch import close_scratch, open_scratch
from tests.kit.spark_fixture import expect_jvm, spark
from tests.kit.user_pytest import user_environment, user_project
from tests.kit.yarn_applications import yarn
from tests.kit.zookeeper_fixture import zookeeper

__all__ = [
    "azure",
    "azurite",
    "hadoop_client",
    "hasty_hadoop_client",
    "hdfs",
    "hot_path",
    "iceberg_jvm",
    "kafka",
    "kafka_by_level",
    "leveled_kafka",
    "older_kafka",
    "place",
    "realm",
    "registry_server",
    "rest_catalog",
    "s3",
    "s3_endpoint",
    "s3_environment",
    "s3_proxied",
    "secure_kafka",
    "spark",
    "topic",
    "user_environment",
    "user_project",
    "wire_over",
    "yarn",
    "zookeeper",
]

_TOGETHER = {
    "hdfs": {
        "tests/contract/test_checkpoint_store.py",
        "tests/contract/test_file_committer.py",
        "tests/contract/test_leader_elections.py",
        "tests/contract/test_store_retention.py",
        "tests/contract/test_lost_committables.py",
        "tests/integration/test_file_sink.py",
        "tests/integration/test_hdfs_checkpoints.py",
        "tests/integration/test_hdfs_outages.py",
        "tests/integration/test_webhdfs.py",
        "tests/integration/test_yarn_jobs.py",
    },
    "brokers of each level": {
        "tests/contract/test_broker_model.py",
        "tests/contract/test_committer.py",
        "tests/contract/test_native_commits.py",
    },
}
"""Modules of one process, by the servers that they need: else each process starts its own."""

# How long an example takes says how busy the machine is; pytest-timeout catches what hangs.
settings.register_profile("sluice", deadline=None, print_blob=True, max_examples=examples(100))
settings.load_profile("sluice")


def pytest_configure(config: pytest.Config) -> None:
    """Before anything starts a process."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # In the background of a script; programs that tests interrupt would ignore it, too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    open_scratch(config)
    _share_ports()


class _ByServers(LoadFileScheduling):
    """A module's tests stay in one process, and so do those of modules that share servers."""

    def _split_scope(self, nodeid: str) -> str:
        module: str = super()._split_scope(nodeid)
        return next((servers for servers in _TOGETHER if module in _TOGETHER[servers]), module)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Deal the tests to the workers, in place of ``--dist``."""
    return _ByServers(config, log)


def _share_ports() -> None:
    """A port is free until its server starts; another worker must not find it so, too. Programs
    that tests start choose among all, as their users' do."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker.startswith("gw"):
        workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        ports._RANGE = ports._RANGE[int(worker[2:]) :: workers]  # noqa: SLF001 - no setting


@pytest.fixture
def silence() -> Iterator[None]:
    """For tests whose thousands of runs have much to say."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """After each test, and all that it has taken down."""
    yield
    expect_jvm()


def pytest_unconfigure(config: pytest.Config) -> None:
    """After the last fixture has ended what it started."""
    close_scratch(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests with the mark ``long`` by default, and the other parts of the rest."""
    if os.environ.get("SLUICE_CHAOS") != "long":
        _leave_out(config, items, [item for item in items if item.get_closest_marker("long")])
    part, _, parts = os.environ.get("SLUICE_EXTENDED", "1/1").partition("/")
    extended = [item for item in items if _is_of_a_part(item)]
    mine = extended[int(part) - 1 :: int(parts)]
    _leave_out(config, items, [item for item in extended if item not in mine])


def _is_of_a_part(item: pytest.Item) -> bool:
    """A cell of Kafka's own copier test is what CI has of those, so it is of each part."""
    is_of_each = item.get_closest_marker("containers") or item.path.name == "test_copier.py"
    return bool(item.get_closest_marker("extended")) and not is_of_each


def _leave_out(
    config: pytest.Config, items: list[pytest.Item], chosen: Collection[pytest.Item]
) -> None:
    if chosen:
        config.hook.pytest_deselected(items=chosen)
        items[:] = [item for item in items if item not in chosen]
