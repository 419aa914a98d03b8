"""How long continuous tasks outlive their coordinator: always below half a transaction timeout."""

import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.kafka_sink_coordinator import KafkaSinkCoordinator
from sluice.runtime.continuous.native_commits import LostTimeout, NativeCommits, TasksFirst
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.errors import ConfigError
from tests.kit.kafka.transaction_harness import FakeHarness


def test_it_is_a_minute_where_the_sinks_allow_that() -> None:
    """Kafka's maximum is fifteen."""
    chosen = LostTimeout(None)
    assert chosen.seconds == 60.0
    chosen.allow(900.0)
    assert chosen.seconds == 60.0


@pytest.mark.parametrize("timeout_s", [15.0, 60.0, 119.0, 120.0])
def test_it_is_shorter_where_a_sink_needs_that(timeout_s: float) -> None:
    """Unless the user has said something else; the shortest of several sinks counts."""
    chosen = LostTimeout(None)
    for each in (900.0, timeout_s, 600.0):
        chosen.allow(each)
    assert 0 < chosen.seconds < timeout_s / 2


@pytest.mark.parametrize("timeout_s", [59.0, 60.0])
def test_what_the_user_has_asked_for_is_refused_where_it_is_not_below_half(
    timeout_s: float,
) -> None:
    """With both numbers, and what to do."""
    with pytest.raises(ConfigError, match="coordinator_lost_timeout_s=30"):
        LostTimeout(30.0).allow(timeout_s)


def test_what_the_user_has_asked_for_is_kept_where_it_is() -> None:
    """Also if it is more than the default."""
    chosen = LostTimeout(400.0)
    chosen.allow(900.0)
    assert chosen.seconds == 400.0


def test_the_start_check_of_a_sink_refuses_it_by_what_its_cluster_allows() -> None:
    """The sink has no timeout of its own, so its transactions get the brokers' maximum."""
    harness = FakeHarness(2)
    limit_s = harness.wire.cluster(timeout_s=1).max_transaction_timeout_s
    assert limit_s is not None

    def checked(asked_s: float | None, *, between_barriers_s: float = 1.0) -> float:
        chosen = LostTimeout(asked_s)
        sink = KafkaSinkCoordinator(
            KafkaConnection(bootstrap_servers="fake:1"),
            transactional_id_prefix=harness.prefix,
            transaction_timeout_s=None,
            topics=(),
            connect=lambda _: harness.wire,
        )
        tasks = TasksFirst(NativeCommits(), chosen, between_barriers_s=between_barriers_s)
        SerialSink(sink, tasks).check(timeout_s=1)
        return chosen.seconds

    assert checked(None) < limit_s / 2
    assert checked(limit_s / 2 - 1) == limit_s / 2 - 1
    with pytest.raises(ConfigError, match="outlive"):
        checked(limit_s / 2)
    assert checked(None, between_barriers_s=limit_s / 3) < limit_s / 2
    with pytest.raises(ConfigError, match="too old at its barrier"):
        checked(None, between_barriers_s=limit_s / 3 + 1)
