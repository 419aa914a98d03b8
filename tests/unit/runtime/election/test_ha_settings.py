"""The settings ``ha`` and ``ha_timeout_s``."""

import pytest

from sluice.runtime.election.ha_settings import HaSettings
from sluice.runtime.election.zookeeper_path import ZooKeeperPath
from sluice.runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("ha", "hosts", "path"),
    [
        ("zookeeper://a", "a:2181", ""),
        ("zookeeper://a:2181,b:2182/sluice/prod/", "a:2181,b:2182", "/sluice/prod"),
        ("zookeeper://[::1]:2181/x", "[::1]:2181", "/x"),
    ],
)
def test_an_address_of_zookeeper_has_hosts_and_a_path(ha: str, hosts: str, path: str) -> None:
    settings = HaSettings.of(ha, 6.0)
    assert settings is not None
    assert settings.zookeeper == ZooKeeperPath(hosts=hosts, path=path)


def test_a_lease_needs_no_server() -> None:
    settings = HaSettings.of("lease", 2.0)
    assert settings is not None
    assert settings.zookeeper is None
    assert settings.nodes_of("orders", "file:///c") is None


def test_without_ha_nothing_is_elected() -> None:
    assert HaSettings.of(None, 6.0) is None


@pytest.mark.parametrize(
    "ha",
    [
        "",
        "Lease",
        "zk://a",
        "zookeeper://",
        "zookeeper://a:99999",
        "zookeeper://a b",
        "zookeeper://a,,b",
    ],
)
def test_another_text_is_refused(ha: str) -> None:
    with pytest.raises(ConfigError, match="names no way to elect"):
        HaSettings.of(ha, 6.0)


@pytest.mark.parametrize("timeout_s", [0.0, 0.9, -1.0, float("nan")])
def test_a_time_that_is_too_short_is_refused(timeout_s: float) -> None:
    with pytest.raises(ConfigError, match="ha_timeout_s"):
        HaSettings.of("lease", timeout_s)


def test_the_nodes_of_two_jobs_are_apart() -> None:
    """Also of jobs with one name in two directories."""
    settings = HaSettings.of("zookeeper://a/sluice", 6.0)
    assert settings is not None
    first, second = (settings.nodes_of("my orders", uri) for uri in ("file:///a", "file:///b"))
    assert first is not None
    assert second is not None
    assert first.path.startswith("/sluice/my-orders-")
    assert first.path != second.path
