"""Brokers of other releases than the embedded one.

Fetched like the release that Sluice embeds, once per user, with checksums pinned beside the tests.
"""

import os
from pathlib import Path

from sluice.connectors.kafka.tools.broker.embedded_kafka import KAFKA_VERSION
from sluice.runtime.embedded.ivy import Artifact, Bundle, fetch, parse_checksums

__all__ = ["CHOSEN", "OLDER_VERSION", "chosen_kafka_jars", "highest_level", "older_kafka_jars"]

OLDER_VERSION = "3.9.1"
"""The last release without the second level of the feature ``transaction.version`` (KIP-890)."""

CHOSEN = "SLUICE_TEST_KAFKA"
"""Environment variable with the release of the session's brokers."""

_DATA = Path(__file__).parents[2] / "data"


def older_kafka_jars() -> Path:
    """Directory with the older broker's jars; fetched at the first call of a user."""
    return _jars(OLDER_VERSION)


def chosen_kafka_jars() -> Path | None:
    """Directory with the jars of the chosen release; None: that of the embedded one."""
    version = _chosen()
    return None if version == KAFKA_VERSION else _jars(version)


def highest_level() -> int:
    """The highest ``transaction.version`` of the chosen release."""
    return 0 if _chosen().startswith("3.") else 2


def _chosen() -> str:
    return os.environ.get(CHOSEN) or KAFKA_VERSION


def _jars(version: str) -> Path:
    kafka = "org.apache.kafka"
    bundle = Bundle(
        name=f"kafka-{version}",
        artifacts=(
            Artifact(organisation=kafka, name="kafka_2.13", version=version),
            Artifact(organisation=kafka, name="kafka-tools", version=version, transitive=False),
            Artifact(
                organisation="org.apache.logging.log4j", name="log4j-slf4j-impl", version="2.25.4"
            ),
        ),
        checksums=parse_checksums((_DATA / f"kafka-{version}.sha256").read_text("ascii")),
    )
    return fetch(bundle)
