"""Jobs that a coordinator in another process cannot lead are refused by name."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.runtime.election.ha_settings import HaSettings
from sluice.runtime.errors import ConfigError
from sluice.runtime.spark.run.hosting.hosted_run import require_hostable
from sluice.runtime.spark.run.region_layout import Layout


def _layout(*names: str, continuous: frozenset[str]) -> Layout:
    regions: Any = tuple(SimpleNamespace(name=name) for name in names)
    return Layout(graph=(), regions=regions, continuous=continuous)


def _job(**settings: Any) -> Any:
    return SimpleNamespace(name="job", **{"ha": None, "uid": None, "restore_from": None} | settings)


def test_regions_in_micro_batches_are_named() -> None:
    """Also those that write files: no such region is continuous."""
    layout = _layout("orders", "files", continuous=frozenset({"orders"}))
    with pytest.raises(ConfigError, match=r"continuous regions only .*regions=files"):
        require_hostable(_job(), layout)


def test_an_election_is_a_setting_of_the_coordinator() -> None:
    layout = _layout("orders", continuous=frozenset({"orders"}))
    with pytest.raises(ConfigError, match="ha is a setting of the coordinator"):
        require_hostable(_job(ha=cast(HaSettings, object())), layout)


def test_repartition_topics_and_restores_are_led() -> None:
    layout = _layout("orders", continuous=frozenset({"orders"}))
    require_hostable(_job(uid="uid", restore_from=7), layout)
