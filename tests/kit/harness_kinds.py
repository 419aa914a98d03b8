"""The brokers on which the transaction protocol is tested: models and real ones, of each level."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.kit.kafka.kafka_fixture import BrokerByLevel
from tests.kit.kafka.kafka_releases import OLDER_VERSION
from tests.kit.kafka.transaction_harness import FakeHarness, Harness, RealHarness

_LEVELS = (0, 1, 2)
_OLDER = pytest.param(
    ("older", 0), id=f"kafka {OLDER_VERSION}", marks=[pytest.mark.integration, pytest.mark.long]
)


def kinds(*, extended: Collection[int] = (), older: bool = False) -> list[Any]:
    """Parameters of a fixture that is made by `harness_of`.

    Args:
        extended: levels whose real brokers are left to `make test-more`.
        older: also an older release of Kafka, in what runs on demand.
    """
    fakes = [pytest.param(("fake", level), id=f"fake-{level}") for level in _LEVELS]
    marks = {
        level: [pytest.mark.integration, *([pytest.mark.extended] if level in extended else [])]
        for level in _LEVELS
    }
    reals = [
        pytest.param(("real", level), id=f"real-{level}", marks=marks[level]) for level in _LEVELS
    ]
    return [*fakes, *reals, *([_OLDER] if older else [])]


@contextmanager
def harness_of(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """A broker of the kind and level that the parameter says."""
    kind, level = request.param
    if kind == "fake":
        yield FakeHarness(level)
        return
    real = RealHarness(_broker_of(request, kind, level), level)
    try:
        yield real
    finally:
        real.close()


def _broker_of(request: pytest.FixtureRequest, kind: str, level: int) -> EmbeddedKafka:
    if kind == "older":
        older: EmbeddedKafka = request.getfixturevalue("older_kafka")
        return older
    brokers: BrokerByLevel = request.getfixturevalue("kafka_by_level")
    return brokers(level)
