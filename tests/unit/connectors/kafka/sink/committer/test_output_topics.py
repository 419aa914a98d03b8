"""Which changes of an output topic's id are reported."""

import pytest

from sluice.connectors.kafka.sink.committer.output_topics import OutputTopics
from tests.kit.kafka.fake_kafka import FakeBroker, FakeWire


def reported(caplog: pytest.LogCaptureFixture, *seen: str | None) -> list[str]:
    """The warnings of a start that finds the first id, and of renewals that find the others; ""
    stands for a topic that does not exist."""
    wire = FakeWire(FakeBroker(), topics=("out",), topic_id=seen[0])
    outputs = OutputTopics(("out",))
    assert outputs.find_missing(wire, timeout_s=1) == []
    for topic_id in seen[1:]:
        wire.topic_id, wire.topics = topic_id, () if topic_id == "" else ("out",)
        outputs.report_recreated(wire, timeout_s=1)
    return [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(("a", "a"), id="the same topic"),
        pytest.param((None, None, "a"), id="brokers are upgraded"),
        pytest.param(("a", None, "a"), id="brokers without ids for a while"),
        pytest.param(("a", "", "a"), id="a broker that does not know it yet"),
    ],
)
def test_the_same_topic_is_not_reported(
    caplog: pytest.LogCaptureFixture, seen: tuple[str | None, ...]
) -> None:
    assert reported(caplog, *seen) == []


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(("a", "b", "b"), id="between two renewals"),
        pytest.param(("a", "", "b"), id="deleted for a while"),
        pytest.param(("a", "b", "a", "b"), id="a broker with old metadata"),
    ],
)
def test_a_recreated_topic_is_reported_once(
    caplog: pytest.LogCaptureFixture, seen: tuple[str | None, ...]
) -> None:
    (warning,) = reported(caplog, *seen)
    assert "topic=out old_id=a new_id=b. Records" in warning


def test_brokers_that_do_not_answer_are_no_change(caplog: pytest.LogCaptureFixture) -> None:
    wire = FakeWire(FakeBroker(), topics=("out",))
    outputs = OutputTopics(("out",))
    outputs.find_missing(wire, timeout_s=1)
    wire.unreachable = True
    outputs.report_recreated(wire, timeout_s=1)
    assert not caplog.records


def test_topics_of_a_column_cost_no_request() -> None:
    OutputTopics(()).report_recreated(FakeWire(FakeBroker(), unreachable=True), timeout_s=1)


def test_a_missing_topic_is_found() -> None:
    outputs = OutputTopics(("out", "absent"))
    wire = FakeWire(FakeBroker(), topics=("out",))
    assert outputs.find_missing(wire, timeout_s=1) == ["absent"]
