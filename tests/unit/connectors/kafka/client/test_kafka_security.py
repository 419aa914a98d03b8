"""How users say who they are: credentials, tokens and TLS for both clients, never shown."""

import http.server
import json
import logging
import pickle
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.confluent import make_admin
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.credentials import (
    OAuthToken,
    Secret,
    UnsecuredToken,
    load_token_function,
    parse_jaas,
)
from sluice.runtime.errors import ConfigError
from tests.kit.kafka.kafka_options import CANARY, SCRAM, SERVERS, connection_with
from tests.kit.waiting import join

# --- credentials ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "family", "options"),
    [
        (
            'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" '
            'password="b c;d";',
            "PLAIN",
            {"username": "a", "password": "b c;d"},
        ),
        (
            "o.a.k.ScramLoginModule   required\n  username='a'\n  password='it\\'s' ;",
            "SCRAM",
            {"username": "a", "password": "it's"},
        ),
        (
            r'ScramLoginModule required username="a" password="say \"hi\" \\o/";',
            "SCRAM",
            {"username": "a", "password": 'say "hi" \\o/'},
        ),
        ("OAuthBearerLoginModule required;", "OAUTHBEARER", {}),
        (
            "OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=alice ;",
            "OAUTHBEARER",
            {"unsecuredLoginStringClaim_sub": "alice"},
        ),
    ],
)
def test_jaas_is_read_as_java_reads_it(text: str, family: str, options: dict[str, str]) -> None:
    """Quotes, escapes, line breaks and semicolons inside quotes."""
    assert parse_jaas(text) == (family, options)


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"KerberosLoginModule required password={CANARY};",
        f'PlainLoginModule username="a" password="{CANARY}";',
        f'PlainLoginModule required username="a" password="{CANARY}',
        f"PlainLoginModule required {CANARY};",
    ],
)
def test_a_broken_jaas_is_an_error_that_does_not_show_it(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        connection_with(
            security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_jaas_config=text or "broken"
        )

    assert CANARY not in str(caught.value)
    assert CANARY not in repr(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"security_protocol": "SASL_TLS"},
        {"security_protocol": "SASL_SSL"},
        {"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"},
        {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"},
        {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "a"},
        {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"},
        {"security_protocol": "SSL", "sasl_mechanism": "PLAIN"},
        {"sasl_username": "a"},
        {"security_protocol": "SSL", "ssl_truststore_type": "JKS"},
        {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "PLAIN",
            "sasl_jaas_config": 'ScramLoginModule required username="a" password="b";',
        },
        {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauthbearer_token_function": "no.such:function",
        },
    ],
)
def test_incomplete_or_contradictory_security_is_refused_at_once(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        connection_with(**options)

    assert "kafka." in str(caught.value)


def test_no_text_of_a_connection_holds_a_secret() -> None:
    """repr, str, settings for checkpoints, pickled copies, both clients' configurations."""
    secrets = {
        **SCRAM,
        "kafka.sasl.oauthbearer.client.secret": CANARY,
        "kafka.ssl.key.password": CANARY,
        "kafka.ssl.keystore.key": CANARY,
        "kafka.ssl.truststore.password": CANARY,
        "kafka.sasl.password": CANARY,
    }
    connection = KafkaConnection.of({**SERVERS, **secrets})
    copy: KafkaConnection = pickle.loads(pickle.dumps(connection))

    assert copy == connection
    said = [repr(connection), f"{copy}", repr(connection.redacted()), repr([connection])]
    assert [text for text in said if CANARY in text] == []
    assert "alice" not in connection.redacted()["kafka.sasl.jaas.config"]
    assert connection.scrub(f"refused {CANARY}!") == "refused [redacted]!"


def test_a_secret_is_text_that_does_not_show_itself() -> None:
    """Libraries that log their settings by repr log nothing."""
    secret = Secret(CANARY)

    assert secret == CANARY
    assert CANARY not in repr({"password": secret})
    assert CANARY not in "%s" % ({"password": secret},)  # noqa: UP031 - as logging formats
    logging.getLogger(__name__).debug("%s", {"password": secret})


# --- tokens ---------------------------------------------------------------------------------------


def make_token() -> OAuthToken:
    return OAuthToken(value=CANARY, expires_at_s=time.time() + 60, principal="alice")


def test_a_named_token_function_crosses_processes_by_name() -> None:
    function = load_token_function(f"{__name__}:make_token")
    copy = pickle.loads(pickle.dumps(function))

    assert copy == function
    assert copy().value == CANARY
    assert CANARY not in repr(copy())
    with pytest.raises(ConfigError):
        load_token_function(f"{__name__}:CANARY")


def test_an_unsecured_token_names_its_principal_and_expires() -> None:
    """The development form that Java calls unsecured."""
    token = UnsecuredToken(principal="alice", lifetime_s=30)()

    assert token.principal == "alice"
    assert 0 < token.expires_at_s - time.time() <= 30
    assert token.value.count(".") == 2


class _Issuer(http.server.BaseHTTPRequestHandler):
    answers: list[tuple[int, dict[str, object]]]
    asked: list[tuple[str, str]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.asked.append((self.headers["Authorization"], body))
        status, content = self.answers.pop(0)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def issuer() -> Iterator[tuple[str, type[_Issuer]]]:
    """A token endpoint that answers as reported."""
    handler = type("Handler", (_Issuer,), {"answers": [], "asked": []})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/token", handler
        server.shutdown()
        join(thread)


def test_client_credentials_fetch_a_token_for_both_clients(
    issuer: tuple[str, type[_Issuer]],
) -> None:
    """By Java's option names; the secret goes to the issuer and nowhere else."""
    url, handler = issuer
    handler.answers += [(200, {"access_token": "t1", "expires_in": 60})] * 2
    connection = KafkaConnection.of(
        {
            **SERVERS,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.oauthbearer.token.endpoint.url": url,
            "kafka.sasl.jaas.config": (
                f'OAuthBearerLoginModule required clientId="me" clientSecret="{CANARY}" scope="k";'
            ),
        }
    )

    value, expires_at_s, principal, _ = connection.librdkafka(Role.CONSUMER)["oauth_cb"]("")
    assert (value, principal) == ("t1", "me")
    assert 0 < expires_at_s - time.time() <= 60
    assert connection.wire()["sasl_oauth_token"]().value == "t1"
    assert handler.asked[0][0].startswith("Basic ")
    assert handler.asked[0][1] == "grant_type=client_credentials&scope=k"
    assert CANARY not in repr(connection)
    assert connection.scrub(CANARY) == "[redacted]"


# --- TLS ------------------------------------------------------------------------------------------


CLIENT_PEM = Path(__file__).parents[4] / "data" / "tls-client.pem"
"""A self-signed certificate and its encrypted key, for these tests only."""


def test_tls_settings_reach_both_clients() -> None:
    """Java's names for PEM stores; host names are checked unless switched off."""
    options = {"security_protocol": "SSL", "ssl_truststore_location": str(CLIENT_PEM)}
    connection = connection_with(**options)
    context = connection.wire()["ssl_context"]

    assert connection.librdkafka(Role.ADMIN)["ssl.ca.location"] == str(CLIENT_PEM)
    assert isinstance(context, ssl.SSLContext)
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert len(context.get_ca_certs()) == 1

    unchecked = connection_with(**options, ssl_endpoint_identification_algorithm="")
    assert not unchecked.wire()["ssl_context"].check_hostname
    assert unchecked.wire()["ssl_context"].verify_mode is ssl.CERT_REQUIRED


def test_a_client_certificate_reaches_both_clients() -> None:
    by_file = connection_with(
        security_protocol="SSL",
        ssl_keystore_type="PEM",
        ssl_keystore_location=str(CLIENT_PEM),
        ssl_key_password="changeit",
    )
    text = CLIENT_PEM.read_text()
    key, certificate = text.split("-----BEGIN CERTIFICATE-----")
    by_text = connection_with(
        security_protocol="SSL",
        ssl_keystore_key=key,
        ssl_keystore_certificate_chain=f"-----BEGIN CERTIFICATE-----{certificate}",
        ssl_key_password="changeit",
    )
    ours = by_file.librdkafka(Role.PRODUCER)

    assert ours["ssl.certificate.location"] == ours["ssl.key.location"] == str(CLIENT_PEM)
    for connection in (by_file, by_text):
        connection.wire()
        make_admin(connection.librdkafka(Role.ADMIN))
        assert "PRIVATE KEY" not in repr(connection)
        assert "changeit" not in repr(connection)


def test_a_wrong_key_password_is_a_typed_error_without_it() -> None:
    connection = connection_with(
        security_protocol="SSL", ssl_keystore_location=str(CLIENT_PEM), ssl_key_password=CANARY
    )

    for use in (connection.wire, lambda: make_admin(connection.librdkafka(Role.ADMIN))):
        with pytest.raises(ConfigError) as caught:
            use()
        assert CANARY not in f"{caught.value} {caught.value!r}"


def test_a_missing_tls_file_is_a_typed_error(tmp_path: Path) -> None:
    connection = connection_with(
        security_protocol="SSL", ssl_ca_location=str(tmp_path / "absent.pem")
    )

    with pytest.raises(ConfigError, match=r"kafka\.ssl"):
        connection.wire()


def test_credentials_reach_both_clients() -> None:
    plain = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "alice",
        "kafka.sasl.password": CANARY,
    }
    for options in (SCRAM, plain):
        connection = KafkaConnection.of({**SERVERS, **options})
        ours, theirs = connection.librdkafka(Role.PRODUCER), connection.wire()
        assert (ours["sasl.username"], ours["sasl.password"]) == ("alice", CANARY)
        assert theirs["sasl_plain_username"] == "alice"
        assert theirs["sasl_plain_password"] == CANARY
        assert theirs["security_protocol"] == options["kafka.security.protocol"]
        assert "sasl.jaas.config" not in ours
