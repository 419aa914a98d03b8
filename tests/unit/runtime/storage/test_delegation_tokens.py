"""Delegation tokens: due ones are replaced, refused ones are not used again, none is shown."""

import logging
import pickle
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.runtime.errors import AuthenticationError, StorageUnreachableError, UnreachableError
from sluice.runtime.storage.delegation_tokens import (
    DelegationToken,
    DriverTokens,
    IssuedToken,
    TaskTokens,
    TokenSource,
    fetching_tokens,
    issued_token,
    without_tokens,
)
from sluice.runtime.storage.web_hdfs import WebHdfsAddress, read_over_web
from sluice.runtime.storage.web_hdfs_client import WebHdfsTaskFiles
from tests.kit.files.fake_webhdfs import FakeWebHdfs
from tests.kit.waiting import wait_for

_PEM = Path(__file__).parents[3] / "data" / "tls-server.pem"
_HOUR_MS = 3_600_000
_NO_KDC = StorageUnreachableError("the KDC is away", {}, "Start it.")


def _token(text: str, *, obtained_ms: int = 0, expires_ms: int = 1 << 62) -> DelegationToken:
    return DelegationToken(text=text, obtained_ms=obtained_ms, expires_ms=expires_ms)


def _past(text: str, number: int = 0) -> DelegationToken:
    """Due, and expired by its own times; only a server decides that."""
    return _token(text, obtained_ms=number, expires_ms=number + 1)


class _Kdc:
    """Obtains tokens, one after the other; raises in between."""

    def __init__(self, *steps: DelegationToken | Exception) -> None:
        self.steps = list(steps)

    def __call__(self) -> DelegationToken:
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, Exception):
            raise step
        return step


class _Driver:
    """Answers tasks; raises while it does not answer. Module-level, so it pickles."""

    def __init__(self, issued: IssuedToken | Exception) -> None:
        self.issued = issued
        self.asked = 0

    def __call__(self, name: str) -> IssuedToken:
        self.asked += 1
        if isinstance(self.issued, Exception):
            raise self.issued
        return self.issued


def _driver(name: str) -> IssuedToken:
    raise UnreachableError("the driver is away", {"name": name}, "Wait.")


@pytest.fixture
def fake() -> Iterator[FakeWebHdfs]:
    with FakeWebHdfs() as running:
        yield running


def _files(fake: FakeWebHdfs, tokens: TokenSource | None, **tls: str) -> WebHdfsTaskFiles:
    address = WebHdfsAddress(name_nodes=(fake.address,), user="ada", tokens=tokens, **tls)
    return WebHdfsTaskFiles(address=address, deadline_s=5.0)


def _write(files: WebHdfsTaskFiles, path: str) -> None:
    file = files.create(path)
    file.stream.write(b"rows")
    assert file.finish() == 4


def _tokens(name: str, token: DelegationToken, fetch: _Driver | None = None) -> TaskTokens:
    return TaskTokens(name=name, issued=IssuedToken(token=token), fetch=fetch)


class TestDriver:
    def test_a_token_is_replaced_at_three_quarters_of_its_life(self) -> None:
        now_ms = 0
        kdc = _Kdc(_token("a", expires_ms=_HOUR_MS), _token("b", expires_ms=3 * _HOUR_MS))
        tokens = DriverTokens(kdc, clock_ms=lambda: now_ms)
        now_ms = _HOUR_MS * 3 // 4 - 1
        assert tokens.current().text == "a"
        now_ms += 1
        tokens.current()
        wait_for(lambda: tokens.current().text == "b", what="the next token")

    def test_without_a_kdc_the_last_token_serves_until_there_is_one(self) -> None:
        """Tasks get the reason with it."""
        kdc = _Kdc(_past("a"), _NO_KDC)
        tokens = DriverTokens(kdc, clock_ms=lambda: 1)
        assert tokens.issued() == IssuedToken(token=_past("a"), problem=str(_NO_KDC))
        with pytest.raises(StorageUnreachableError, match="the KDC is away"):
            tokens.after(_past("a"))
        kdc.steps = [_token("b")]
        assert tokens.after(_past("a")).text == "b"
        assert tokens.issued() == IssuedToken(token=_token("b"))

    def test_the_first_token_is_obtained_at_once_or_the_start_fails(self) -> None:
        with pytest.raises(AuthenticationError):
            DriverTokens(_Kdc(AuthenticationError("no ticket", {}, "Run kinit.")))

    def test_tasks_get_the_newest_token_with_their_plan(self) -> None:
        """And the service finds it by its name."""
        tokens = DriverTokens(_Kdc(_token("a")))
        found = pickle.loads(pickle.dumps(tokens))
        assert isinstance(found, TaskTokens)
        assert found.current() == _token("a")
        assert issued_token(found.name) == IssuedToken(token=_token("a"))
        assert issued_token("other") is None
        with fetching_tokens(_driver):
            assert pickle.loads(pickle.dumps(tokens)).fetch is _driver


class TestTask:
    def test_a_due_token_is_fetched_from_the_driver(self) -> None:
        driver = _Driver(IssuedToken(token=_token("b", obtained_ms=1)))
        tokens = _tokens("due", _past("a"), driver)
        assert tokens.current().text == "b"
        assert tokens.current().text == "b"
        assert driver.asked == 1

    def test_without_its_driver_a_task_continues_with_its_token(self) -> None:
        driver = _Driver(UnreachableError("the driver is away", {}, "Wait."))
        tokens = _tokens("away", _past("a"), driver)
        assert [tokens.current().text for _ in range(3)] == ["a"] * 3
        assert driver.asked == 1, "asked again after a pause only"

    def test_all_tasks_of_a_process_use_the_newest(self) -> None:
        """A plan that is older than what the process knows brings nothing old back."""
        _tokens("shared", _token("b", obtained_ms=1)).current()
        assert _tokens("shared", _token("a")).current().text == "b"


class TestWebHdfs:
    def test_a_token_takes_the_place_of_the_user_name(self, fake: FakeWebHdfs) -> None:
        fake.token = "good"
        files = _files(fake, _tokens("place", _token("good")))
        _write(pickle.loads(pickle.dumps(files)), "/a")
        assert files.read("/a", 0, 4) == b"rows"
        assert read_over_web(files.address, "/a") == b"rows"
        assert not fake.users

    def test_a_refused_token_is_replaced_by_the_drivers_newest(self, fake: FakeWebHdfs) -> None:
        """In the middle of a task that runs for long."""
        driver = _Driver(IssuedToken(token=_token("new", obtained_ms=1)))
        files = _files(fake, _tokens("refused", _token("old"), driver))
        fake.token = "old"
        _write(files, "/a")
        fake.token = "new"
        _write(files, "/b")
        assert set(fake.files) == {"/a", "/b"}

    def test_an_expired_token_is_an_outage_with_its_cause(self, fake: FakeWebHdfs) -> None:
        """The epoch waits: it is no failure of the region."""
        fake.token = "new"
        driver = _Driver(IssuedToken(token=_token("old"), problem="Cannot contact any KDC"))
        with pytest.raises(StorageUnreachableError, match="Cannot contact any KDC"):
            _files(fake, _tokens("expired", _token("old"), driver)).create("/a")
        with pytest.raises(StorageUnreachableError, match="expired"):
            _files(fake, _tokens("alone", _token("old"))).length_bytes("/a")

    def test_a_token_that_expires_while_a_file_is_written_is_an_outage(
        self, fake: FakeWebHdfs
    ) -> None:
        """The DataNode tells it; the file is not there, and its epoch is written again."""
        fake.token, fake.expires_meanwhile = "good", True
        with pytest.raises(StorageUnreachableError, match="expired"):
            _write(_files(fake, _tokens("meanwhile", _token("good"))), "/a")
        assert not fake.files

    def test_a_driver_without_kerberos_is_told_what_to_set(self, fake: FakeWebHdfs) -> None:
        fake.token = "good"
        with pytest.raises(AuthenticationError, match="authentication=kerberos"):
            _files(fake, None).check()

    def test_no_error_and_no_log_shows_a_token(
        self, fake: FakeWebHdfs, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Errors and debug lines of urllib3 hold the address with its parameters."""
        fake.token = "CANARY"
        files = _files(fake, _tokens("canary", _token("CANARY")))
        with caplog.at_level(logging.DEBUG, "urllib3"):
            _write(files, "/a")
        assert "delegation=***" in caplog.text
        address = WebHdfsAddress(
            name_nodes=("127.0.0.1:1",), user="ada", tokens=_tokens("canary", _token("CANARY"))
        )
        with pytest.raises(UnreachableError) as caught:
            WebHdfsTaskFiles(address=address, deadline_s=0.1).create("/a")
        assert "CANARY" not in f"{caplog.text}{caught.value}{caught.value!r}{address}"
        assert without_tokens("a?op=X&delegation=CANARY&b=1") == "a?op=X&delegation=***&b=1"

    def test_servers_are_trusted_by_the_users_authorities(self) -> None:
        """NameNode and DataNode; without them the task does not send its token."""
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(_PEM, password="changeit")
        text = _PEM.read_text()
        authorities = text[text.index("-----BEGIN CERT") :]
        with FakeWebHdfs(tls) as fake:
            _write(_files(fake, None, scheme="https", authorities=authorities), "/a")
            stranger = _files(fake, None, scheme="https")
            with pytest.raises(UnreachableError, match="certificate"):
                WebHdfsTaskFiles(address=stranger.address, deadline_s=0.1).create("/b")
            assert set(fake.files) == {"/a"}
