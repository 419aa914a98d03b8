"""TLS of the driver's service: every client checks the certificate, and plain HTTP is refused."""

import datetime
import os
import pickle
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.runtime.errors import ConfigError, MissingRequirementError, UnreachableError
from sluice.runtime.service.listening.listener import Listener
from sluice.runtime.service.listening.service_settings import ServiceSettings
from sluice.runtime.service.listening.service_tls import ServiceTls, client_context, served_tls
from sluice.runtime.service.server import CoordinatorService
from sluice.runtime.service.service_client import CoordinatorAddress, CoordinatorClient
from tests.kit.service_certificates import Authority

_HOST = "127.0.0.1"


@contextmanager
def serving(tls: bool | ServiceTls, *, host: str = _HOST) -> Iterator[CoordinatorService]:
    settings = ServiceSettings(host=host, bind_address=_HOST, tls=tls)
    with CoordinatorService(listener=Listener.of(settings)) as service:
        yield service


def status_of(address: CoordinatorAddress) -> object:
    with CoordinatorClient(address, deadline_s=0.0) as client:
        return client.status()["queries"]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.mark.parametrize("host", [_HOST, "localhost"])
def test_a_made_certificate_travels_with_the_address(host: str) -> None:
    with serving(True, host=host) as service:
        address = pickle.loads(pickle.dumps(service.coordinator_address))
        assert address.address.startswith(f"https://{host}:")
        assert "BEGIN" not in repr(address)
        assert status_of(address) == []


def test_each_run_has_another_certificate() -> None:
    with serving(True) as service, serving(True) as other:
        ours, theirs = service.coordinator_address, other.coordinator_address
        assert ours.ca != theirs.ca
        foreign = CoordinatorAddress(
            address=ours.address, token=ours.token, leader_session_id="", job_uid="", ca=theirs.ca
        )
        with pytest.raises(UnreachableError, match="certificate is not accepted"):
            status_of(foreign)


def test_a_certificate_of_the_user_is_accepted_with_its_authority(
    authority: Authority, tmp_path: Path
) -> None:
    tls = authority.issue(tmp_path, "driver.example", _HOST)
    with serving(tls) as service:
        assert status_of(service.coordinator_address) == []


def test_a_client_without_tls_is_refused(authority: Authority, tmp_path: Path) -> None:
    tls = authority.issue(tmp_path, _HOST)
    with serving(tls) as service:
        ours = service.coordinator_address
        plain = CoordinatorAddress(
            address=ours.address.replace("https", "http"),
            token=ours.token,
            leader_session_id="",
            job_uid="",
        )
        with pytest.raises(UnreachableError):
            status_of(plain)
        port = int(ours.address.rpartition(":")[2])
        with socket.create_connection((_HOST, port)) as client:
            client.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = client.makefile("rb").read()
        assert b"HTTP" not in answer


def test_a_client_with_tls_names_a_service_without() -> None:
    with serving(False) as service:
        ours = service.coordinator_address
        secured = CoordinatorAddress(
            address=ours.address.replace("http", "https"),
            token=ours.token,
            leader_session_id="",
            job_uid="",
        )
        with pytest.raises(UnreachableError, match="does not speak TLS"):
            status_of(secured)


def test_another_authority_is_refused_before_the_token_is_sent(
    authority: Authority, tmp_path: Path
) -> None:
    tls = authority.issue(tmp_path, _HOST)
    with serving(tls) as service:
        ours = service.coordinator_address
        foreign = CoordinatorAddress(
            address=ours.address,
            token=ours.token,
            leader_session_id="",
            job_uid="",
            ca=Authority().pem,
        )
        with pytest.raises(UnreachableError, match="certificate is not accepted"):
            status_of(foreign)


def test_the_start_refuses_what_clients_would_refuse(authority: Authority, tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    cases = {
        "expired": authority.issue(tmp_path / "1", _HOST, until=now - datetime.timedelta(hours=1)),
        "mismatch": authority.issue(tmp_path / "2", "elsewhere.example"),
        "self-signed certificate in certificate chain|unable to get local issuer": ServiceTls(
            certificate=authority.issue(tmp_path / "3", _HOST).certificate,
            key=tmp_path / "3" / "key.pem",
            ca=Authority().written(tmp_path / "4.pem"),
        ),
        "No such file": ServiceTls(certificate=tmp_path / "absent", key=tmp_path / "absent"),
        "(?i)key values mismatch": ServiceTls(
            certificate=authority.issue(tmp_path / "5", _HOST).certificate,
            key=authority.issue(tmp_path / "6", _HOST).key,
        ),
    }
    for reason, tls in cases.items():
        with pytest.raises(ConfigError, match=reason):
            served_tls(tls, host=_HOST)


def test_a_renewed_certificate_needs_no_restart(authority: Authority, tmp_path: Path) -> None:
    """As cert-manager renews it: the files are replaced, under the same authority."""
    tls = authority.issue(tmp_path, _HOST)
    with serving(tls) as service:
        ours = service.coordinator_address
        first = _served_certificate(ours)
        Path(tls.key).write_text("half of a renewal")
        assert _served_certificate(ours) == first
        authority.issue(tmp_path, _HOST)
        os.utime(tls.key, ns=(1, 1))  # in case both were written within one tick of the disk
        assert _served_certificate(ours) != first
        assert status_of(ours) == []


def test_strict_checks_of_later_pythons_accept_a_made_certificate() -> None:
    with serving(True) as service:
        context = client_context(service.coordinator_address.ca)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        port = int(service.address.rpartition(":")[2])
        with (
            socket.create_connection((_HOST, port)) as plain,
            context.wrap_socket(plain, server_hostname=_HOST) as secured,
        ):
            assert secured.version() == "TLSv1.3"


def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cryptography", None)
    with pytest.raises(MissingRequirementError, match=r"sluice-spark\[tls\]"):
        served_tls(None, host=_HOST)


def _served_certificate(address: CoordinatorAddress) -> bytes | None:
    port = int(address.address.rpartition(":")[2])
    with (
        socket.create_connection((_HOST, port)) as plain,
        client_context(address.ca).wrap_socket(plain, server_hostname=_HOST) as secured,
    ):
        return secured.getpeercert(binary_form=True)
