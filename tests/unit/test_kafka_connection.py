"""How users say where Kafka is: names, translation, credentials, and what is never shown."""

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

from connectors.kafka import client_options
from connectors.kafka._client import (
    KafkaError,
    KafkaException,
    make_admin,
    make_consumer,
    make_producer,
    translate,
)
from connectors.kafka.client_options import Role, nearest, translate_names
from connectors.kafka.credentials import (
    ClientCredentials,
    OAuthToken,
    Secret,
    UnsecuredToken,
    load_token_function,
    parse_jaas,
)
from connectors.kafka.security import KafkaConnection
from runtime.errors import (
    AuthenticationError,
    ConfigError,
    DeliveryError,
    FencedError,
    SourceChangedError,
    StreamError,
    UnreachableError,
)

SERVERS = {"kafka.bootstrap.servers": "a:9092,b:9092"}
CANARY = "canary-6f1e"
SCRAM = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="alice" password="{CANARY}";'
    ),
}


def _of(**options: str) -> KafkaConnection:
    named = {f"kafka.{name.replace('_', '.')}": value for name, value in options.items()}
    return KafkaConnection.of({**SERVERS, **named})


# --- names ----------------------------------------------------------------------------------


def test_options_of_others_are_left_alone() -> None:
    """Spark's own options stand beside ours in one mapping."""
    connection = KafkaConnection.of({**SERVERS, "subscribe": "orders", "startingOffsets": "latest"})

    assert connection.bootstrap_servers == "a:9092,b:9092"
    assert connection.options == {}


def test_sparks_case_does_not_matter() -> None:
    """Spark hands options over in lower case, or as they were written."""
    connection = KafkaConnection.of({"Kafka.Bootstrap.Servers": "a:1", "KAFKA.client.id": "me"})

    assert connection.bootstrap_servers == "a:1"
    assert connection.options == {"client.id": "me"}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("kafka.securty.protocol", "kafka.security.protocol"),
        ("kafka.sasl.mechansim", "kafka.sasl.mechanism"),
        ("kafka.max.partition.fetch.byte", "kafka.max.partition.fetch.bytes"),
        ("kafka.fetch.max.wait", "kafka.fetch.max.wait.ms"),
        ("kafka.lingerms", "kafka.linger.ms"),
    ],
)
def test_a_misspelt_option_names_the_nearest_right_one(written: str, meant: str) -> None:
    """A setting that does nothing is worse than an error."""
    with pytest.raises(ConfigError) as caught:
        KafkaConnection.of({**SERVERS, written: CANARY})

    assert f"Did you mean {meant}?" in str(caught.value)
    assert CANARY not in str(caught.value)


def test_a_hopeless_name_is_an_error_without_a_guess() -> None:
    """Better no advice than a wrong one."""
    with pytest.raises(ConfigError, match="Remove it"):
        KafkaConnection.of({**SERVERS, "kafka.zzz": "1"})
    assert nearest("zzz", frozenset({"acks"})) is None


@pytest.mark.parametrize(
    "name",
    [
        "kafka.key.deserializer",
        "kafka.interceptor.classes",
        "kafka.partitioner.class",
        "kafka.sasl.login.callback.handler.class",
    ],
)
def test_what_only_a_java_client_can_do_is_refused_with_an_alternative(name: str) -> None:
    """The remedy says what to do in its place."""
    with pytest.raises(ConfigError) as caught:
        KafkaConnection.of({**SERVERS, name: "x"})

    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("kafka.transactional.id", "mine"),
        ("kafka.transaction.timeout.ms", "1000"),
        ("kafka.group.id", "mine"),
        ("kafka.enable.auto.commit", "true"),
        ("kafka.auto.offset.reset", "latest"),
        ("kafka.enable.idempotence", "false"),
        ("kafka.isolation.level", "read_uncommitted"),
        ("kafka.acks", "1"),
    ],
)
def test_what_sluice_owns_cannot_be_overridden(option: str, value: str) -> None:
    """Refused by name: ownership, and everything that would silently weaken exactly-once."""
    with pytest.raises(ConfigError) as caught:
        KafkaConnection.of({**SERVERS, option: value}).refuse_owned(exactly_once=True)

    assert option in str(caught.value)


def test_weaker_guarantees_may_have_weaker_settings() -> None:
    """acks=1 is fine where nothing is promised; ids and groups stay ours."""
    _of(acks="1", enable_idempotence="false").refuse_owned(exactly_once=False)
    with pytest.raises(ConfigError):
        _of(group_id="g").refuse_owned(exactly_once=False)


def test_java_names_become_librdkafkas() -> None:
    """What a Spark user wrote for the Java client works here, units converted."""
    java = {
        "fetch.max.wait.ms": "100",
        "max.request.size": "2000000",
        "buffer.memory": "33554432",
        "receive.buffer.bytes": "-1",
        "ssl.endpoint.identification.algorithm": "",
        "ssl.truststore.location": "/ca.pem",
        "linger.ms": "5",
        "max.poll.records": "500",
    }

    assert translate_names(java, Role.PRODUCER) == {
        "message.max.bytes": "2000000",
        "queue.buffering.max.kbytes": "32768",
        "socket.receive.buffer.bytes": "0",
        "ssl.endpoint.identification.algorithm": "none",
        "ssl.ca.location": "/ca.pem",
        "linger.ms": "5",
    }
    assert "linger.ms" not in translate_names(java, Role.CONSUMER)
    assert translate_names(java, Role.CONSUMER)["fetch.wait.max.ms"] == "100"


_VALUES: dict[str, object] = {
    "delivery.report.only.error": True,
    "ssl.endpoint.identification.algorithm": "https",
    "security.protocol": "plaintext",
    "broker.address.family": "any",
    "client.dns.lookup": "use_all_dns_ips",
    "metadata.recovery.strategy": "none",
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    "group.protocol": "classic",
    "partition.assignment.strategy": "range",
    "partitioner": "murmur2",
    "queuing.strategy": "fifo",
    "debug": "generic",
    "broker.version.fallback": "0.10.0",
    "sasl.mechanism": "PLAIN",
    "sasl.mechanisms": "PLAIN",
    "compression.codec": "none",
    "compression.type": "none",
    "topic.blacklist": "x",
}


@pytest.mark.parametrize("role", Role)
def test_every_option_of_the_tables_exists_in_librdkafka(role: Role) -> None:
    """The tables are not a wish: the installed librdkafka knows each name."""
    make = {Role.PRODUCER: make_producer, Role.CONSUMER: make_consumer, Role.ADMIN: make_admin}
    names = translate_names(dict.fromkeys(client_options._KNOWN, "1"), role)  # noqa: SLF001
    unknown = []
    for name in names:
        config: dict[str, object] = {"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}
        if role is Role.CONSUMER:
            config["group.id"] = "g"
        try:
            make[role]({**config, name: _VALUES.get(name, "1")})
        except ConfigError as err:
            if "No such configuration property" in str(err):
                unknown.append(name)

    assert unknown == []
    assert len(names) > 50


# --- credentials ----------------------------------------------------------------------------


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
    """It holds a password."""
    with pytest.raises(ConfigError) as caught:
        _of(security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_jaas_config=text or "broken")

    assert CANARY not in str(caught.value)
    assert CANARY not in repr(caught.value)


def test_credentials_reach_both_clients() -> None:
    """From JAAS or from librdkafka's own names."""
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
    """Before any connection, with the option's name."""
    with pytest.raises(ConfigError) as caught:
        _of(**options)

    assert "kafka." in str(caught.value)


def test_no_servers_is_one_clear_sentence() -> None:
    """The most common mistake."""
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers"):
        KafkaConnection.of({"topic": "x"})


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


# --- tokens ---------------------------------------------------------------------------------


def make_token() -> OAuthToken:
    """Named by an option below."""
    return OAuthToken(value=CANARY, expires_at_s=time.time() + 60, principal="alice")


def test_a_named_token_function_crosses_processes_by_name() -> None:
    """Executors import it themselves."""
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
    """A token endpoint that answers as told."""
    handler = type("Handler", (_Issuer,), {"answers": [], "asked": []})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/token", handler
        server.shutdown()
        thread.join(5)


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


@pytest.mark.parametrize("answer", [(401, {}), (200, {}), (200, {"access_token": 7})])
def test_a_refused_token_is_an_authentication_error_without_the_secret(
    issuer: tuple[str, type[_Issuer]], answer: tuple[int, dict[str, object]]
) -> None:
    """What, where, what to do."""
    url, handler = issuer
    handler.answers += [answer]
    ask = ClientCredentials(token_url=url, client_id="me", client_secret=CANARY)

    with pytest.raises(AuthenticationError) as caught:
        ask()

    assert "client id" in str(caught.value)
    assert CANARY not in f"{caught.value!r} {ask!r}"


# --- TLS ------------------------------------------------------------------------------------


CLIENT_PEM = Path(__file__).parent.parent / "data" / "tls-client.pem"
"""A self-signed certificate and its encrypted key, for these tests only."""


def test_tls_settings_reach_both_clients() -> None:
    """Java's names for PEM stores; host names are checked unless switched off."""
    options = {"security_protocol": "SSL", "ssl_truststore_location": str(CLIENT_PEM)}
    connection = _of(**options)
    context = connection.wire()["ssl_context"]

    assert connection.librdkafka(Role.ADMIN)["ssl.ca.location"] == str(CLIENT_PEM)
    assert isinstance(context, ssl.SSLContext)
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert len(context.get_ca_certs()) == 1

    unchecked = _of(**options, ssl_endpoint_identification_algorithm="")
    assert not unchecked.wire()["ssl_context"].check_hostname
    assert unchecked.wire()["ssl_context"].verify_mode is ssl.CERT_REQUIRED


def test_a_client_certificate_reaches_both_clients() -> None:
    """As a PEM key store file, or as PEM text; the key's password too."""
    by_file = _of(
        security_protocol="SSL",
        ssl_keystore_type="PEM",
        ssl_keystore_location=str(CLIENT_PEM),
        ssl_key_password="changeit",
    )
    text = CLIENT_PEM.read_text()
    key, certificate = text.split("-----BEGIN CERTIFICATE-----")
    by_text = _of(
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
    """Both clients refuse; ours says which options to look at."""
    connection = _of(
        security_protocol="SSL", ssl_keystore_location=str(CLIENT_PEM), ssl_key_password=CANARY
    )

    for use in (connection.wire, lambda: make_admin(connection.librdkafka(Role.ADMIN))):
        with pytest.raises(ConfigError) as caught:
            use()
        assert CANARY not in f"{caught.value} {caught.value!r}"


def test_a_missing_tls_file_is_a_typed_error(tmp_path: Path) -> None:
    """What cannot be read is named by its kind, in the driver, before any task."""
    connection = _of(security_protocol="SSL", ssl_ca_location=str(tmp_path / "absent.pem"))

    with pytest.raises(ConfigError, match=r"kafka\.ssl"):
        connection.wire()


# --- errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("_ALL_BROKERS_DOWN", UnreachableError),
        ("_TRANSPORT", UnreachableError),
        ("REQUEST_TIMED_OUT", UnreachableError),
        ("_AUTHENTICATION", AuthenticationError),
        ("TOPIC_AUTHORIZATION_FAILED", AuthenticationError),
        ("SASL_AUTHENTICATION_FAILED", AuthenticationError),
        ("UNKNOWN_TOPIC_OR_PART", SourceChangedError),
        ("UNKNOWN_TOPIC_ID", SourceChangedError),
        ("MSG_SIZE_TOO_LARGE", DeliveryError),
        ("_MSG_TIMED_OUT", DeliveryError),
        ("PRODUCER_FENCED", FencedError),
        ("_FENCED", FencedError),
        ("INVALID_TRANSACTION_TIMEOUT", ConfigError),
    ],
)
def test_client_errors_become_typed_ones(code: str, kind: type[StreamError]) -> None:
    """One class for each thing a caller does differently; code and place are kept."""
    error = KafkaException(KafkaError(getattr(KafkaError, code)))
    translated = translate(error, {"topic": "out"})

    assert type(translated) is kind
    assert translated.args[1] == {"topic": "out", "code": code}
    assert pickle.loads(pickle.dumps(translated)).args == translated.args


def test_a_refused_setting_is_a_configuration_error() -> None:
    """librdkafka's own check of values, in our words."""
    with pytest.raises(ConfigError, match=r"socket\.timeout\.ms"):
        make_producer({"bootstrap.servers": "127.0.0.1:1", "socket.timeout.ms": "-5"})


def test_librdkafka_logs_through_pythons_logging(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing on stderr, also when a broker cannot be reached."""
    with caplog.at_level(logging.DEBUG, logger="connectors.kafka.librdkafka"):
        admin = make_admin({"bootstrap.servers": "127.0.0.1:1", "debug": "broker"})
        deadline = time.monotonic() + 10
        while not caplog.records and time.monotonic() < deadline:
            admin.poll(0.05)

    assert caplog.records
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("Connect to ipv4#10.0.0.1:9092 failed: Connection refused (after 0ms)", logging.INFO),
        ("Disconnected (after 81ms in state UP)", logging.INFO),
        ("Disconnected: verify that security.protocol is correctly configured", logging.ERROR),
        ("SASL authentication error: Authentication failed (after 3ms)", logging.ERROR),
        ("SSL handshake failed: certificate verify failed", logging.ERROR),
    ],
)
def test_a_lost_connection_is_no_error_of_the_log(
    caplog: pytest.LogCaptureFixture, text: str, level: int
) -> None:
    """The client connects again by itself; what no further try can mend stays an error."""
    log = logging.getLogger("connectors.kafka.librdkafka")
    with caplog.at_level(logging.INFO, logger=log.name):
        broker = "[thrd:sasl_ssl://b:9093/1]: sasl_ssl://b:9093/1"
        log.log(logging.ERROR, "%s [%s] %s", "FAIL", "rdkafka#producer-1", f"{broker}: {text}")
    assert [record.levelno for record in caplog.records] == [level]


def test_a_lost_connection_is_silent_where_no_log_is_set_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A worker without logging prints nothing for each producer when a broker stops."""
    log = logging.getLogger("connectors.kafka.librdkafka")
    with caplog.at_level(logging.WARNING, logger=log.name):
        log.error("%s [%s] %s", "FAIL", "rdkafka#producer-1", "[thrd:b/1]: b/1: Disconnected")
        log.warning("%s [%s] %s", "GETPID", "rdkafka#producer-1", "Failed to acquire: retrying")
    assert caplog.records == []
