"""Where the driver's service listens: arguments, settings of Spark, and what is refused."""

import contextlib
import socket
from collections.abc import Mapping

import pytest

from sluice.runtime.errors import ConfigError, MissingRequirementError
from sluice.runtime.service.listening.listener import Listener
from sluice.runtime.service.listening.service_settings import ServiceSettings
from sluice.runtime.service.listening.service_tls import ServiceTls

_PREFIX = "spark.sluice.service."


def conf(**settings: str) -> Mapping[str, str]:
    return {_PREFIX + name.replace("_", "."): value for name, value in settings.items()}


def test_without_settings_it_listens_on_any_port_of_loopback_without_tls() -> None:
    found = ServiceSettings.of({"spark.app.name": "x"})
    assert found == ServiceSettings()
    assert (found.host, found.bind_address, list(found.ports)) == ("127.0.0.1", "127.0.0.1", [0])
    assert found.tls is False


def test_settings_of_spark_count_and_arguments_come_first() -> None:
    given = conf(host="driver.svc", bindAddress="0.0.0.0", port="7100-7101", tls="TRUE")
    found = ServiceSettings.of(given)
    assert (found.host, found.bind_address) == ("driver.svc", "0.0.0.0")
    assert list(found.ports) == [7100, 7101]
    assert found.tls is True
    other = ServiceSettings.of(given, host="10.0.0.1", bind_address="::", port=9, tls=False)
    assert (other.host, other.bind_address, list(other.ports)) == ("10.0.0.1", "::", [9])
    assert other.tls is False


def test_the_bind_address_follows_the_host() -> None:
    assert ServiceSettings.of({}, host="10.0.0.1").bind_address == "10.0.0.1"


def test_files_of_tls_come_from_settings_of_spark() -> None:
    files = conf(tls_certificate="a.pem", tls_key="b.pem", tls_ca="c.pem")
    expected = ServiceTls(certificate="a.pem", key="b.pem", ca="c.pem")
    assert ServiceSettings.of(files).tls == expected
    without_ca = ServiceSettings.of(conf(tls_certificate="a", tls_key="b", tls="true"))
    assert without_ca.tls == ServiceTls(certificate="a", key="b")


@pytest.mark.parametrize(
    "given",
    [
        conf(tls="yes"),
        conf(tls_certificate="a"),
        conf(tls_ca="a"),
        conf(tls_certificate="a", tls_key="b", tls="false"),
    ],
)
def test_settings_of_tls_that_contradict_are_refused(given: Mapping[str, str]) -> None:
    with pytest.raises(ConfigError, match="contradict each other"):
        ServiceSettings.of(given)


def test_a_misspelt_setting_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"spark\.sluice\.service\.ports"):
        ServiceSettings.of(conf(ports="7100"))


@pytest.mark.parametrize("port", [-1, 65536, "x", "7-5", "0-5", "1-65536", "", "1-2-3", True, 1.5])
def test_what_is_no_port_is_refused(port: object) -> None:
    with pytest.raises(ConfigError, match="neither a port nor a range"):
        ServiceSettings.of({}, port=port)  # type: ignore[arg-type]  # without types


def test_an_empty_bind_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="bind_address is empty"):
        ServiceSettings.of({}, bind_address=" ")


def _next_is_free(port: int) -> bool:
    with contextlib.suppress(OSError, OverflowError):
        socket.create_server(("127.0.0.1", port + 1)).close()
        return True
    return False


def test_a_range_serves_several_jobs_of_a_host() -> None:
    with contextlib.ExitStack() as stack:
        while True:
            taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = taken.getsockname()[1]
            if _next_is_free(port):
                break
        pair = range(port, port + 2)
        with Listener.open("127.0.0.1", pair) as second:
            assert second.address != f"http://127.0.0.1:{port}"
            with pytest.raises(MissingRequirementError, match=f"port={pair[0]}-{pair[-1]}"):
                Listener.open("127.0.0.1", pair)


def test_a_taken_port_is_named_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MissingRequirementError, match="service_port") as raised:
            Listener.of(ServiceSettings.of({}, port=port))
    assert f"port={port} " in str(raised.value)
    assert "reason=Address already in use" in str(raised.value)


def test_it_listens_on_one_address_and_tells_another() -> None:
    settings = ServiceSettings.of({}, host="driver.example", bind_address="127.0.0.1")
    with Listener.of(settings) as listener:
        assert listener.address.startswith("http://driver.example:")
        assert listener.is_local


def test_an_address_at_which_nobody_is_reached_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"host=0\.0\.0\.0"):
        ServiceSettings.of({}, default_host="127.0.0.1", host="0.0.0.0")
