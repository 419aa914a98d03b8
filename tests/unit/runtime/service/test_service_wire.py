"""What crosses the wire between the coordinator and its clients, and what a client imports."""

import pickle
import subprocess
import sys

import pytest

from sluice.runtime import errors
from sluice.runtime.errors import StreamError
from sluice.runtime.model.json_values import from_json, to_json
from sluice.runtime.model.splits import Barrier, SplitRange
from sluice.runtime.service.error_json import error_from_json, error_to_json
from sluice.runtime.service.server import CoordinatorService
from tests.kit.coordinator.coordinated_service import BATCH
from tests.kit.waiting import PATIENCE_S


@pytest.mark.parametrize("name", sorted(set(errors.__all__)))
def test_every_error_crosses_as_itself(name: str) -> None:
    """Class, text and place; what JSON cannot hold becomes text."""
    kind = getattr(errors, name)
    sent = kind("what happened", {"batch": BATCH, "count": 3, "none": None}, "What to do.")
    got = error_from_json(error_to_json(sent))
    assert type(got) is kind
    assert str(got) == str(sent)


def test_an_error_of_a_later_version_is_still_an_error() -> None:
    """Its class is not known here."""
    got = error_from_json({"type": "Future", "what": "a", "where": {}, "remedy": "b"})
    assert type(got) is StreamError


def test_a_barrier_crosses_whole() -> None:
    """Also what is optional."""
    barrier = Barrier(
        checkpoint_id=4,
        region="main",
        attempt_id=2,
        splits=(
            SplitRange(
                source_id="s",
                topic="t",
                topic_id="u",
                partition=1,
                start_offset=2,
                end_offset=2**53 + 1,
                leader_epoch=3,
                largest_timestamp_ms=4,
            ),
        ),
    )
    assert from_json(Barrier, to_json(barrier)) == barrier


def test_an_address_travels_by_pickle(service: CoordinatorService) -> None:
    """Into tasks and source runners."""
    address = service.coordinator_address
    assert pickle.loads(pickle.dumps(address)) == address


def test_the_client_is_light() -> None:
    """Every Python worker imports it: no server, no Spark, no Kafka client."""
    code = (
        "import sys; import sluice.runtime.service.service_client; "
        "import sluice.runtime.service.drop_in_client; "
        "print([m for m in ('starlette','uvicorn','httptools','pyspark',"
        "'confluent_kafka','kafka','prometheus_client','fastavro') if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert found.stdout.strip() == "[]"
