"""Misspelt arguments of what users make by hand: a typed error that names the nearest right one."""

from collections.abc import Callable
from typing import Any

import pytest

from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.client.client_tuning import HotPath
from sluice.runtime.errors import ConfigError
from sluice.runtime.job.job import Job
from sluice.runtime.model.spelling import choice_of, nearest

CANARY = "canary-55-secret"


def job(**given: Any) -> Job:
    """A job without a session, which it does not need before it runs."""
    return Job("orders", None, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "given", "meant"),
    [
        (job, "interval", "interval_s"),
        (job, "checkpoint_directory", "checkpoint_dir"),
        (job, "restore_form", "restore_from"),
        (job, "Retained", "retained"),
        (KafkaSource, "topcs", "topics"),
        (KafkaSource, "bootstrap_server", "bootstrap_servers"),
        (KafkaSource, "startingOffsets", "starting_offsets"),
        (KafkaSink, "topics", "topic"),
        (KafkaSink, "transactional_prefix", "transactional_id_prefix"),
    ],
)
def test_a_misspelt_argument_names_the_nearest_right_one(
    make: Callable[..., object], given: str, meant: str
) -> None:
    """Never its value, which may be a secret; also in place of an argument that is needed."""
    with pytest.raises(ConfigError) as caught:
        make(**{given: CANARY})
    assert f"setting={given}" in str(caught.value)
    assert f"Did you mean {meant}?" in str(caught.value)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("make", [job, KafkaSource, KafkaSink])
def test_a_hopeless_argument_is_an_error_without_a_guess(make: Callable[..., object]) -> None:
    """Better no advice than a wrong one."""
    with pytest.raises(ConfigError, match="Remove it"):
        make(zzz=1)


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
def test_a_choice_that_there_is_not_is_told_with_those_that_there_are(
    text: str, remedy: str, told: str
) -> None:
    with pytest.raises(ConfigError, match="hotPath has a value that does not exist") as raised:
        choice_of(HotPath, text, setting="hotPath", remedy=remedy)
    assert str(raised.value).endswith(told)
