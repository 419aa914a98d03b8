"""The verdict of rounds in which Kafka takes records from the input: exact all the same."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from connectors.kafka.security import KafkaConnection
from runtime.checker import Payload, Record
from runtime.storage.opening import open_file_system
from tests.bed.verdict import Found, compare
from tests.chaos.programs import Topics, exclaim
from tests.chaos.published_files import PublishedFiles

_SENT = list(
    Payload(topic="in", run="bed", partitions=2, null_value_every=0, empty_value_every=0).records(
        40
    )
)
_TAKEN = _SENT[20:30]
"""Of which the first four were read before."""
_LEFT = [record for record in _SENT if record not in _TAKEN]
_WRITTEN = _SENT[:24] + _SENT[30:]
_FILE, _LATER = "files/part-000000000003-a", "files/part-000000000004-b"

Records = list[Record]


@pytest.fixture
def topics(tmp_path: Path) -> Topics:
    """Their names; nothing is read."""
    files = PublishedFiles(fs=open_file_system(str(tmp_path)), name="files")
    connection = KafkaConnection(bootstrap_servers="none:1")
    return Topics(connection=connection, source="in", output="out", files=files)


def written(topics: Topics, records: Sequence[Record]) -> Records:
    """As the job writes them into the topic, behind one another."""
    made = [copy for record in records for copy in exclaim(topics)(record)]
    ends: dict[int, int] = {}
    for at, record in enumerate(made):
        ends[record.partition] = ends.get(record.partition, -1) + 1
        made[at] = record._replace(offset=ends[record.partition])
    return made


def rows(topics: Topics, records: Sequence[Record]) -> Records:
    """As rows of a file."""
    return [copy._replace(headers=()) for record in records for copy in exclaim(topics)(record)]


def found(topics: Topics, output: Sequence[Record] = _WRITTEN) -> Found:
    """A round without files."""
    return Found(source=_LEFT, output=written(topics, output))


def with_files(topics: Topics, first: Sequence[Record], later: Sequence[Record]) -> Found:
    """A round with two of them."""
    files = {_FILE: rows(topics, first), _LATER: rows(topics, later)}
    return replace(found(topics), files=files)


def test_what_kafka_took_may_be_there_or_not(topics: Topics) -> None:
    """Whatever of it was read is in the output, the rest is nowhere."""
    verdict = compare(topics, _SENT, found(topics))
    assert not verdict.faults
    assert (verdict.records, verdict.taken, verdict.taken_read) == (34, 10, 4)
    verdict = compare(topics, _SENT, with_files(topics, _SENT[:24], _SENT[30:]))
    assert (verdict.faults, verdict.outputs) == ((), 2)


def test_what_was_never_acknowledged_was_not_taken(topics: Topics) -> None:
    """It may be in the input or not, and is judged as whatever else is there."""
    values = [record.value or b"" for record in _TAKEN[:6]]
    verdict = compare(topics, _SENT, found(topics), unacknowledged=values)
    assert (verdict.faults, verdict.taken, verdict.taken_read) == ((), 4, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda good: good[1:], id="lost"),
        pytest.param(lambda good: [*good, good[0]], id="doubled"),
        pytest.param(lambda good: [*good, good[21]], id="doubled, of what was taken"),
        pytest.param(lambda good: [good[2], good[1], good[0], *good[3:]], id="reordered"),
        pytest.param(lambda good: [good[0]._replace(key=b"other"), *good[1:]], id="corrupted"),
    ],
)
def test_whatever_else_is_missing_or_too_much_is_a_fault(
    topics: Topics, wrong: Callable[[Records], Records]
) -> None:
    """Of what is left in the input as of what was taken from it."""
    assert compare(topics, _SENT, found(topics, wrong(_WRITTEN))).faults


def test_both_outputs_hold_the_same_of_what_was_taken(topics: Topics) -> None:
    """They are of one decision: what is in one and not in the other is torn."""
    fewer = with_files(topics, _SENT[:23], _SENT[30:])
    assert "files" in "".join(compare(topics, _SENT, fewer).faults)
    more = with_files(topics, _SENT[:25], _SENT[30:])
    assert "topic" in "".join(compare(topics, _SENT, more).faults)


def test_files_keep_the_order_of_what_was_sent(topics: Topics) -> None:
    """Behind a loss offsets begin anew; sequences do not."""
    swapped = with_files(topics, _SENT[30:], _SENT[:24])
    assert "behind" in "".join(compare(topics, _SENT, swapped).faults)


def test_an_input_with_a_record_twice_judges_nobody(topics: Topics) -> None:
    """The feeder's own fault is named as such."""
    twice = replace(found(topics), source=[*_LEFT, _LEFT[0]])
    assert "the input itself" in "".join(compare(topics, _SENT, twice).faults)


def test_a_record_that_nobody_sent_ends_the_round(topics: Topics) -> None:
    """It has no origin."""
    stray = replace(found(topics), output=[Record("out", 0, 0, None, b"stray")])
    with pytest.raises(AssertionError, match="nobody has sent"):
        compare(topics, _SENT, stray)
