"""Misspelt names and choices: a typed error that names the nearest right one."""

from collections.abc import Callable
from typing import Any

import pytest

from sluice import KafkaSource
from sluice.connectors.kafka.client.client_tuning import HotPath
from sluice.runtime.errors import ConfigError
from sluice.runtime.job.job import Job
from sluice.runtime.model.spelling import choice_of, nearest


def job(**given: Any) -> Job:
    """A job without a session, which it does not need before it runs."""
    return Job("orders", None, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "missing"),
    [(job, "checkpoint_dir"), (lambda: KafkaSource(topics=["a"]), "bootstrap.servers")],
)
def test_a_missing_argument_is_named(make: Callable[[], object], missing: str) -> None:
    """A typed error as for every other setting."""
    with pytest.raises(ConfigError, match=missing):
        make()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("checkpoint_interval_s", "interval_s"),
        ("servers", "bootstrap_servers"),
        ("interval", "interval_s"),
        ("subscribepatern", "subscribepattern"),
        ("keys", None),
    ],
)
def test_a_name_that_says_more_or_less_is_guessed(given: str, meant: str | None) -> None:
    """Before one that only looks alike."""
    known = ["checkpoint_dir", "interval_s", "bootstrap_servers", "subscribe", "subscribepattern"]
    assert nearest(given, known) == meant


def test_only_a_close_name_is_a_guess() -> None:
    """The closest of all."""
    assert nearest("ack", {"acks", "batch.size"}) == "acks"
    assert nearest("zzz", frozenset({"acks"})) is None


def test_a_choice_is_read_in_any_case() -> None:
    assert choice_of(HotPath, " Native ", setting="hotPath") is HotPath.NATIVE


@pytest.mark.parametrize(
    ("text", "remedy", "told"),
    [
        ("natve", "", "Did you mean native? Use one of auto, native, plain."),
        ("natve", "Take auto.", "Did you mean native? Take auto."),
        ("x", "", "hotPath=x known=auto, native, plain]. Use one of auto, native, plain."),
    ],
)
def test_a_choice_that_there_is_not_is_reported_with_those_that_there_are(
    text: str, remedy: str, told: str
) -> None:
    with pytest.raises(ConfigError, match="hotPath has a value that does not exist") as raised:
        choice_of(HotPath, text, setting="hotPath", remedy=remedy)
    assert str(raised.value).endswith(told)
