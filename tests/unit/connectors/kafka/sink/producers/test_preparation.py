"""A producer is made by what the cluster is known to accept, while some broker is not heard."""

from collections.abc import Mapping
from typing import Any

import pytest

from sluice.connectors.kafka.client.client_tuning import HotPath, WriteSettings
from sluice.connectors.kafka.client.confluent import KafkaError
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.producers.cluster_limits import LimitsAnswer
from sluice.connectors.kafka.sink.producers.preparation import Preparation
from sluice.connectors.kafka.sink.producers.producer_errors import LateRequestError, UnansweredError
from sluice.runtime.errors import ConfigError
from tests.kit.kafka.fake_producer import FakeClient, FakeCluster, kafka_error

PARTIAL = LimitsAnswer(timeouts_s={"1": 900.0}, unanswered=frozenset({"broker 2"}))
WHOLE = LimitsAnswer(timeouts_s={"1": 900.0, "2": 60.0})
REFUSAL = kafka_error("INVALID_TRANSACTION_TIMEOUT")


class Made:
    """A preparation, what it asked the cluster, and for which transactions."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, looks: list[LimitsAnswer], answers: list[KafkaError]
    ) -> None:
        self.cluster = FakeCluster(init_answers=answers)
        self.looks = looks
        self.timeouts_ms: list[int] = []
        monkeypatch.setattr(
            "sluice.connectors.kafka.sink.producers.preparation.make_client", self._client
        )
        self.prepare = Preparation(
            KafkaConnection(bootstrap_servers="nowhere:9092"),
            WriteSettings(queue_kib=1024, queue_records=1000),
            transaction_timeout_s=None,
            topic=None,
            fetch=self._look,
            hot_path=HotPath.PLAIN,
            retry_for_s=10.0,
        )

    def _look(self) -> LimitsAnswer:
        if not self.looks:
            raise ConfigError("the client refuses a setting", {}, "")
        return self.looks.pop(0)

    def _client(self, hot_path: HotPath, config: Mapping[str, Any]) -> FakeClient:
        del hot_path
        self.timeouts_ms.append(config["transaction.timeout.ms"])
        return FakeClient(self.cluster, config)


def test_a_broker_that_was_away_and_takes_less_than_the_others_ends_no_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes back as coordinator before the next look at what it accepts."""
    made = Made(monkeypatch, [PARTIAL, WHOLE], [REFUSAL])
    made.prepare("id").release()
    assert made.timeouts_ms == [900_000, 60_000]


def test_ids_never_reused_behind_a_request_without_an_answer_another_id_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As while that broker was coming back."""
    silence = kafka_error("_TIMED_OUT", retriable=True)
    made = Made(monkeypatch, [PARTIAL, WHOLE], [silence, REFUSAL])
    with pytest.raises(LateRequestError):
        made.prepare("id")
    made.prepare("another id").release()
    assert made.timeouts_ms == [900_000, 60_000]


def test_ids_never_reused_a_look_that_fails_does_not_hide_a_request_without_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its id would be given to another task, whose transaction the late request aborts."""
    silence = kafka_error("_TIMED_OUT", retriable=True)
    made = Made(monkeypatch, [PARTIAL], [silence, REFUSAL])
    with pytest.raises(UnansweredError):
        made.prepare("id")


@pytest.mark.parametrize("looks", [[WHOLE], [PARTIAL, PARTIAL]])
def test_what_is_refused_by_all_that_is_known_is_an_error_of_the_job(
    monkeypatch: pytest.MonkeyPatch, looks: list[LimitsAnswer]
) -> None:
    """It is asked for once more only where another look has told something else."""
    made = Made(monkeypatch, list(looks), [REFUSAL])
    with pytest.raises(ConfigError):
        made.prepare("id")
    assert not made.looks
    assert len(made.timeouts_ms) == 1
