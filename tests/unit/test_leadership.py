"""Who leads, as a task sees it whose driver is silent and whose checkpoint directory is on HDFS."""

import json
import pickle
from collections.abc import Callable, Iterator

import pytest

from runtime.embedded.ports import free_ports
from runtime.errors import FencedError, StorageUnreachableError, UnreachableError
from runtime.service.client import CoordinatorAddress, CoordinatorClient
from runtime.storage.web_hdfs import WebHdfsAddress
from runtime.storage.web_read import read_over_web
from tests.fake_webhdfs import FakeWebHdfs

_RECORD = "/jobs/a b#1/_leader"


@pytest.fixture
def fake() -> Iterator[FakeWebHdfs]:
    """A NameNode that is also its DataNode."""
    with FakeWebHdfs() as running:
        yield running


def _web(*name_nodes: str) -> WebHdfsAddress:
    return WebHdfsAddress(name_nodes=name_nodes, user="ada")


def _dead() -> str:
    (port,) = free_ports(1)
    return f"127.0.0.1:{port}"


def _leader(*, session: str = "second", generation: int = 7) -> bytes:
    return json.dumps(
        {
            "format_version": 1,
            "leader_session_id": session,
            "address": "http://elsewhere",
            "generation": generation,
        }
    ).encode()


def _asked(web: WebHdfsAddress | None, *, generation: int | None = 4) -> None:
    """A barrier is asked for, of a coordinator that does not answer."""
    address = CoordinatorAddress(
        address=f"http://{_dead()}",
        token="t",
        leader_session_id="first",
        job_uid="u",
        generation=generation,
        checkpoint_uri="hdfs://nn:8020/jobs/a b#1",
        checkpoint_web=web,
    )
    as_a_task_gets_it = pickle.loads(pickle.dumps(address))
    with CoordinatorClient(as_a_task_gets_it, deadline_s=0.1) as client:
        client.poll_barrier("main", 0, wait_s=0.0)


def test_a_task_learns_over_webhdfs_that_a_later_coordinator_leads(fake: FakeWebHdfs) -> None:
    """From the NameNode that is active, as the driver's user."""
    fake.files[_RECORD] = _leader()
    with FakeWebHdfs() as standby:
        standby.is_standby = True
        with pytest.raises(FencedError, match="elsewhere"):
            _asked(_web(_dead(), standby.address, fake.address))
    assert fake.users == {"ada"}


@pytest.mark.parametrize(
    "record",
    [
        _leader(session="first", generation=4),
        _leader(generation=3),
        b'{"format_version": 1, "leader_session_id": "second", "address": "h:1"}',
        b'{"format_version": 2}',
        b"\xff",
        b"",
    ],
    ids=["ours", "earlier", "does not say", "of a later Sluice", "rubbish", "empty"],
)
def test_a_record_that_proves_nothing_ends_no_task(fake: FakeWebHdfs, record: bytes) -> None:
    fake.files[_RECORD] = record
    with pytest.raises(UnreachableError, match="did not answer"):
        _asked(_web(fake.address))


def _nothing(fake: FakeWebHdfs) -> None:
    fake.files.clear()


def _kerberos(fake: FakeWebHdfs) -> None:
    fake.asks_for_kerberos = True


def _standby(fake: FakeWebHdfs) -> None:
    fake.is_standby = True


def _dead_data_node(fake: FakeWebHdfs) -> None:
    fake.dead_data_nodes = [_dead()]


@pytest.mark.parametrize("trouble", [_nothing, _kerberos, _standby, _dead_data_node])
def test_a_look_that_fails_ends_no_task(
    fake: FakeWebHdfs, trouble: Callable[[FakeWebHdfs], None]
) -> None:
    fake.files[_RECORD] = _leader()
    trouble(fake)
    with pytest.raises(UnreachableError, match="did not answer"):
        _asked(_web(fake.address))


def test_without_an_address_or_a_generation_nothing_is_concluded(fake: FakeWebHdfs) -> None:
    fake.files[_RECORD] = _leader()
    with pytest.raises(UnreachableError, match="did not answer"):
        _asked(None)
    with pytest.raises(UnreachableError, match="did not answer"):
        _asked(_web(fake.address), generation=None)


def test_a_file_that_is_not_there_is_told_from_one_that_cannot_be_read(fake: FakeWebHdfs) -> None:
    """With every NameNode that was asked, and what it said."""
    assert read_over_web(_web(fake.address), "/none") is None
    fake.files["/there"] = b"bytes"
    assert read_over_web(_web(fake.address), "/there") == b"bytes"
    fake.is_standby = True
    with pytest.raises(StorageUnreachableError, match="reasons=MaxRetryError,HTTP 403"):
        read_over_web(_web(_dead(), fake.address), "/there")
