"""The table of requests in the docs, and the sets that a start checks."""

import re

from sluice.connectors.kafka.client.broker_requests import (
    EXACTLY_ONCE,
    IDEMPOTENCE,
    READING,
    REQUESTS,
    TOPIC_IDS,
    TRUNCATION,
    WRITING,
)
from tests.kit.deploy_page import ROOT


def rows() -> list[tuple[str, set[str]]]:
    page = (ROOT / "docs" / "reference" / "kafka-requests.md").read_text("utf-8")
    cells = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| s")]
    return [(feature.strip(), set(re.findall(r"`([^`]+)`", needs))) for feature, needs in cells]


def test_the_page_lists_what_each_start_checks() -> None:
    found = rows()
    assert next(needs for feature, needs in found if feature == "source") == set(READING)
    assert {*TRUNCATION} in [needs for _, needs in found]
    assert {*TOPIC_IDS} in [needs for _, needs in found]
    assert next(needs for feature, needs in found if "any guarantee" in feature) == set(WRITING)
    assert next(n for feature, n in found if "`at-least-once`" in feature) == set(IDEMPOTENCE)
    exactly = [needs for feature, needs in found if "`exactly-once`" in feature]
    assert set().union(*exactly, WRITING) == set(EXACTLY_ONCE)


def test_each_request_is_checked_by_some_start() -> None:
    some = {*READING, *TRUNCATION, *TOPIC_IDS, *WRITING, *IDEMPOTENCE, *EXACTLY_ONCE}
    assert some == REQUESTS.keys()
    assert len({*REQUESTS.values()}) == len(REQUESTS)
