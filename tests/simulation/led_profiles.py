"""Worlds in which tasks outlive their leaders."""

from collections.abc import Mapping
from typing import Any

from tests.simulation.profile import Profile

__all__ = ["LED_PROFILES"]

_LED: dict[str, Any] = {"continuous": True, "outlived": True, "meanwhile": 0.1}
_TOPIC: dict[str, Any] = {**_LED, "keyed": True, "disk": True, "add": 0.0, "topic": True}

LED_PROFILES: Mapping[str, Profile] = {
    "tasks outlive their leaders": Profile(**_LED, kill=0.05, pause=0.03, start=0.1, processes=12),
    "tasks outlive leaders that pause": Profile(
        **_LED, pause=0.06, resume=0.03, kill=0.01, start=0.12, processes=12
    ),
    "tasks outlive leaders, answers are lost": Profile(
        **_LED, lost_answer=0.1, refused=0.1, unreached=0.1, unanswered=0.2, kill=0.03, start=0.1
    ),
    "tasks outlive leaders, regions fail and are skipped": Profile(
        **_LED,
        regions=3,
        regional=True,
        fail_region=0.03,
        fail_task=0.1,
        kill=0.04,
        start=0.1,
        processes=12,
    ),
    "tasks outlive leaders, splits move": Profile(
        **_LED,
        regions=3,
        partitions=5,
        move=0.4,
        fail_region=0.01,
        kill=0.04,
        start=0.1,
        processes=10,
    ),
    "tasks outlive leaders, requests come late": Profile(
        **_LED, late=0.2, old=0.2, kill=0.04, start=0.1, processes=12
    ),
    "tasks outlive leaders, keyed state moves": Profile(
        **_LED,
        keyed=True,
        disk=True,
        add=0.0,
        regions=3,
        partitions=5,
        move=0.4,
        kill=0.05,
        start=0.1,
        processes=12,
    ),
    "tasks outlive leaders, transactions expire": Profile(
        **_LED, expire=0.05, max_concurrent=2, kill=0.05, start=0.1, processes=12
    ),
    "tasks outlive leaders, somebody goes back": Profile(
        **_LED, restore=0.05, kill=0.05, start=0.1, processes=12
    ),
    "tasks outlive leaders, regions are suspended": Profile(
        **_LED,
        regions=3,
        regional=True,
        suspend=True,
        command=0.03,
        fail_region=0.03,
        kill=0.05,
        start=0.1,
        processes=12,
    ),
    "tasks outlive leaders, rows go from region to region": Profile(
        **_TOPIC,
        regions=3,
        partitions=4,
        regional=True,
        fail_region=0.02,
        kill=0.05,
        start=0.1,
        processes=12,
    ),
    "tasks outlive leaders, rows go from region to region, somebody goes back": Profile(
        **_TOPIC, restore=0.06, kill=0.05, pause=0.02, start=0.1, processes=12
    ),
}
