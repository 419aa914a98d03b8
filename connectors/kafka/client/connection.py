"""How to reach a Kafka cluster: servers, ``kafka.*`` options, credentials, TLS.

One value, `KafkaConnection`, configures both clients: librdkafka by a dictionary and the wire
client of `sluice.connectors.kafka.client.wire_client` by keyword arguments.
"""

import logging
import os
import re
import ssl
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from sluice.connectors.kafka.client.client_options import (
    PREFIX,
    Role,
    check_known,
    is_no,
    is_sendable,
    refuse_owned,
    translate_names,
)
from sluice.connectors.kafka.client.credentials import (
    ClientCredentials,
    ExtendedToken,
    KerberosLogin,
    Secret,
    TokenFunction,
    UnsecuredToken,
    load_token_function,
    parse_extensions,
    parse_jaas,
    without_credentials,
)
from sluice.connectors.kafka.client.java_stores import without_java_stores
from sluice.connectors.kafka.client.msk_iam import MSK_HANDLER, MSK_IAM, REGION, MskIamToken
from sluice.connectors.kafka.client.tokens import KeptToken, kept_token
from sluice.runtime.errors import ConfigError, StreamError

__all__ = ["MECHANISMS", "REDACTED", "KafkaConnection"]

log = logging.getLogger(__name__)

REDACTED = "[redacted]"
"""Replaces a secret when settings are shown or stored."""

_SECRET_OPTIONS = frozenset(
    {
        "sasl.jaas.config",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.extensions",
        "sasl.password",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.key",
        "ssl.keystore.password",
        "ssl.truststore.password",
    }
)
_ADDRESSES = frozenset({"sasl.oauthbearer.token.endpoint.url"})
# As the Java client's request.timeout.ms. It bounds the wait for a broker that hangs while another
# one leads. librdkafka's default is a minute, and the transaction timeout for transactions.
_ANSWER_MS = 30_000
# confluent-kafka gives up a client without a token after 10 s; librdkafka asks every 10 s.
_TOKEN_RETRY_S = 5.0
_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]|[0-9A-Za-z._-]+):(?P<port>[0-9]{1,5})")
_LARGEST_PORT = 65_535
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""SASL mechanisms that both clients and the embedded broker support."""
_KERBEROS = "GSSAPI"


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConnection:
    """How to reach a cluster; picklable, and without secrets in any text made of it.

    Attributes:
        bootstrap_servers: ``host:port``, comma-separated.
        options: further Kafka options without the prefix ``kafka.``, by Java's names or
            librdkafka's; checked here.
        oauth_token: gives tokens for OAUTHBEARER; picklable.
    """

    bootstrap_servers: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    oauth_token: TokenFunction | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        options = {
            name.strip().lower().removeprefix(PREFIX): str(value)
            for name, value in self.options.items()
        }
        servers = _one_of(options, "bootstrap.servers", "metadata.broker.list")
        servers = servers or self.bootstrap_servers
        object.__setattr__(self, "bootstrap_servers", servers)
        object.__setattr__(self, "options", options)
        _refuse_unsendable({"bootstrap.servers": servers, **options})
        _check_servers(self.servers)
        check_known(options)
        _check_protocol(options)
        # Executors may have neither the driver's files nor its variables.
        if options.get("security.protocol", "").upper().endswith("SSL"):
            options = without_java_stores(options)
            object.__setattr__(self, "options", options)
        sasl = self._sasl()
        if sasl is not None and isinstance(sasl.token, MskIamToken):
            options[REGION] = sasl.token.region

    @classmethod
    def of(cls, options: Mapping[str, str], *, oauth_token: TokenFunction | None = None) -> Self:
        """Take the Spark options that begin with ``kafka.``.

        Raises:
            ConfigError: an unknown, unsupported or incomplete ``kafka.*`` option.
        """
        own = {k: v for k, v in options.items() if k.strip().lower().startswith(PREFIX)}
        return cls(bootstrap_servers="", options=own, oauth_token=oauth_token)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.redacted().items())
        return f"KafkaConnection({shown})"

    @property
    def servers(self) -> tuple[str, ...]:
        """``host:port`` of each bootstrap server."""
        return tuple(s.strip() for s in self.bootstrap_servers.split(",") if s.strip())

    def refuse_owned(self, *, exactly_once: bool, reads_only: bool = False) -> None:
        """ConfigError for options that Sluice sets itself or that weaken the guarantee."""
        refuse_owned(self.options, exactly_once=exactly_once, reads_only=reads_only)

    def redacted(self) -> dict[str, str]:
        """Every setting with its prefix, secrets replaced; safe to log and to store."""
        shown = {
            PREFIX + name: REDACTED if _is_secret(name, value) else value
            for name, value in sorted(self.options.items())
        }
        return {PREFIX + "bootstrap.servers": self.bootstrap_servers, **shown}

    def scrub(self, text: str) -> str:
        """``text`` with every secret of this connection replaced."""
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, REDACTED)
        return text

    @property
    def is_idempotent(self) -> bool:
        """Whether the user left a producer's idempotence on."""
        return not is_no(self.options.get("enable.idempotence", "true"))

    def librdkafka(self, role: Role) -> dict[str, Any]:
        """Configuration of a librdkafka client; holds secrets, which its ``repr`` hides."""
        config: dict[str, Any] = {
            "bootstrap.servers": ",".join(self.servers),
            "socket.timeout.ms": _ANSWER_MS,
            **{
                name: Secret(value) if name in _SECRET_OPTIONS else value
                for name, value in translate_names(self.options, role).items()
            },
        }
        if config.get("ssl.certificate.location") and "ssl.key.location" not in config:
            config["ssl.key.location"] = config["ssl.certificate.location"]
        protocol = self.options.get("security.protocol", "").upper()
        if protocol:
            config["security.protocol"] = protocol.lower()
        sasl = self._sasl()
        if sasl is None:
            return config
        for name in [name for name in config if name.startswith("sasl.")]:
            del config[name]
        config["sasl.mechanism"] = sasl.mechanism
        if self.options.get("sasl.oauthbearer.method", "").lower() == _OIDC:
            config |= _oidc_settings(sasl.token)
        elif sasl.kerberos is not None:
            config |= sasl.kerberos.options
        elif sasl.token is not None:
            config["oauth_cb"] = _LibrdkafkaToken(kept_token(sasl.token))
        else:
            config |= {"sasl.username": sasl.username, "sasl.password": Secret(sasl.password)}
        return config

    def wire(self) -> dict[str, Any]:
        """Keyword arguments of the wire client, without its token provider's base class.

        ``sasl_oauth_token`` holds a `TokenFunction` where one is needed; the edge wraps it.
        """
        protocol = self.options.get("security.protocol", "PLAINTEXT").upper()
        settings: dict[str, Any] = {
            "bootstrap_servers": list(self.servers),
            "security_protocol": protocol,
        }
        if client_id := self.options.get("client.id"):
            settings["client_id"] = client_id
        if protocol.endswith("SSL"):
            settings["ssl_context"] = _ssl_context(translate_names(self.options, Role.ADMIN))
        sasl = self._sasl()
        if sasl is None:
            return settings
        settings["sasl_mechanism"] = sasl.mechanism
        if sasl.kerberos is not None:
            settings["sasl_kerberos_service_name"] = sasl.kerberos.service
            settings["sasl_kerberos_keytab"] = sasl.kerberos.keytab
        elif sasl.token is not None:
            settings["sasl_oauth_token"] = sasl.token
        else:
            settings["sasl_plain_username"] = sasl.username
            settings["sasl_plain_password"] = Secret(sasl.password)
        return settings

    def _sasl(self) -> "_Sasl | None":
        if not self.options.get("security.protocol", "").upper().startswith("SASL"):
            return None
        return _read_sasl(self.options, self.oauth_token, self.servers)

    def _secrets(self) -> Iterable[str]:
        yield from (v for n, v in self.options.items() if v and _is_secret(n, v))
        sasl = self._sasl()
        if sasl is not None and sasl.password:
            yield sasl.password
        token = None if sasl is None else sasl.token
        function = token.function if isinstance(token, ExtendedToken) else token
        if isinstance(function, ClientCredentials):
            yield function.client_secret


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sasl:
    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    token: TokenFunction | None = None
    kerberos: KerberosLogin | None = None


def _is_secret(name: str, value: str) -> bool:
    """Whether an option is secret: by its name, or because an address holds a password."""
    holds_it = name in _ADDRESSES and without_credentials(value) != value
    return name in _SECRET_OPTIONS or holds_it


def _one_of(options: dict[str, str], *names: str) -> str:
    """Take an option that has several names; its values must be equal.

    Otherwise records could go to one cluster, and their commits to another.
    """
    given = {name: value for name in names if (value := options.pop(name, "").strip())}
    if len(set(given.values())) > 1:
        raise ConfigError(
            "an option is given twice with different values",
            {PREFIX + name: value for name, value in given.items()},
            f"Give {PREFIX}{names[0]} alone.",
        )
    return next(iter(given.values()), "")


def _read_sasl(
    options: Mapping[str, str], token: TokenFunction | None, servers: Sequence[str]
) -> _Sasl:
    mechanism = (options.get("sasl.mechanism") or options.get("sasl.mechanisms") or "").upper()
    if mechanism not in (*MECHANISMS, MSK_IAM, _KERBEROS):
        raise ConfigError(
            "the SASL mechanism is missing or not supported",
            {"option": "kafka.sasl.mechanism", "value": mechanism},
            f"Use one of {', '.join((*MECHANISMS, MSK_IAM, _KERBEROS))}.",
        )
    family, jaas = "", dict[str, str]()
    if "sasl.jaas.config" in options:
        family, jaas = parse_jaas(options["sasl.jaas.config"])
        if not mechanism.startswith(family):
            raise ConfigError(
                "the JAAS login module does not fit the SASL mechanism",
                {"option": "kafka.sasl.jaas.config", "kafka.sasl.mechanism": mechanism},
                "Use the login module of that mechanism.",
            )
    if mechanism == _KERBEROS:
        return _Sasl(mechanism=mechanism, kerberos=KerberosLogin.read(options, jaas))
    is_signed = options.get("sasl.login.callback.handler.class", "").endswith(MSK_HANDLER)
    if mechanism == MSK_IAM or is_signed:
        region = options.get(REGION, "")
        signed = MskIamToken.of(jaas, servers, region=region, environment=os.environ)
        return _Sasl(mechanism=_OAUTH, token=token or signed)
    if mechanism == _OAUTH:
        _check_method(options, token)
        function = token or _token_function(options, jaas)
        return _Sasl(mechanism=mechanism, token=_extended(function, options, jaas))
    username = options.get("sasl.username") or jaas.get("username", "")
    password = options.get("sasl.password") or jaas.get("password", "")
    if not username or not password:
        raise ConfigError(
            "user name or password is missing",
            {"kafka.sasl.mechanism": mechanism},
            "Set kafka.sasl.jaas.config, or kafka.sasl.username and kafka.sasl.password.",
        )
    return _Sasl(mechanism=mechanism, username=username, password=password)


_OAUTH, _OIDC = "OAUTHBEARER", "oidc"


def _check_method(options: Mapping[str, str], token: TokenFunction | None) -> None:
    method = options.get("sasl.oauthbearer.method", "default").lower()
    if method not in ("default", _OIDC):
        raise ConfigError(
            "the OAUTHBEARER method is not known",
            {"option": "kafka.sasl.oauthbearer.method", "value": method},
            "Use default or oidc.",
        )
    is_named = "sasl.oauthbearer.token.function" in options
    has_url = bool(options.get("sasl.oauthbearer.token.endpoint.url"))
    if method == _OIDC and (token is not None or is_named or not has_url):
        raise ConfigError(
            "the OAUTHBEARER method oidc needs a token endpoint, and no token function",
            {"option": "kafka.sasl.oauthbearer.method"},
            "Set kafka.sasl.oauthbearer.token.endpoint.url, or remove the method.",
        )


def _oidc_settings(token: TokenFunction | None) -> dict[str, Any]:
    """For librdkafka's own requests of tokens; `_check_method` has passed."""
    extensions = dict[str, str]()
    if isinstance(token, ExtendedToken):
        extensions, token = dict(token.extensions), token.function
    assert isinstance(token, ClientCredentials)
    settings: dict[str, Any] = {
        "sasl.oauthbearer.method": _OIDC,
        "sasl.oauthbearer.token.endpoint.url": Secret(token.token_url),
        "sasl.oauthbearer.client.id": token.client_id,
        "sasl.oauthbearer.client.secret": Secret(token.client_secret),
    }
    if token.scope:
        settings["sasl.oauthbearer.scope"] = token.scope
    if extensions:
        pairs = ",".join(f"{name}={value}" for name, value in extensions.items())
        settings["sasl.oauthbearer.extensions"] = Secret(pairs)
    return settings


def _token_function(options: Mapping[str, str], jaas: Mapping[str, str]) -> TokenFunction:
    if path := options.get("sasl.oauthbearer.token.function"):
        return load_token_function(path)
    if url := options.get("sasl.oauthbearer.token.endpoint.url"):
        return ClientCredentials(
            token_url=url,
            client_id=_first(options, *_CLIENT_ID) or jaas.get("clientId", ""),
            client_secret=_first(options, *_CLIENT_SECRET) or jaas.get("clientSecret", ""),
            scope=options.get("sasl.oauthbearer.scope") or jaas.get("scope", ""),
            ca_file=options.get("https.ca.location"),
            ca_pem=options.get("https.ca.pem"),
        )
    principal = jaas.get("unsecuredLoginStringClaim_sub") or _config_principal(options)
    if principal:
        return UnsecuredToken(principal=principal, lifetime_s=_lifetime_s(jaas))
    raise ConfigError(
        "OAUTHBEARER needs a source of tokens",
        {"option": "kafka.sasl.mechanism"},
        "Pass a token function, or set kafka.sasl.oauthbearer.token.function, "
        "kafka.sasl.oauthbearer.token.endpoint.url or kafka.sasl.jaas.config.",
    )


def _extended(
    function: TokenFunction, options: Mapping[str, str], jaas: Mapping[str, str]
) -> TokenFunction:
    """Add the extensions of librdkafka's option and of Java's login module."""
    extensions = {
        name.removeprefix(prefix): value
        for prefix in _JAAS_EXTENSION
        for name, value in jaas.items()
        if name.startswith(prefix)
    }
    extensions |= parse_extensions(options.get("sasl.oauthbearer.extensions", ""))
    if not extensions:
        return function
    return ExtendedToken(function=function, extensions=tuple(sorted(extensions.items())))


def _lifetime_s(jaas: Mapping[str, str]) -> float:
    name = "unsecuredLoginLifetimeSeconds"
    text = jaas.get(name, "3600")
    try:
        return float(text)
    except ValueError:
        raise ConfigError(
            "the lifetime of tokens is not a number",
            {"option": "kafka.sasl.jaas.config", name: text},
            "Give seconds.",
        ) from None


_JAAS_EXTENSION = ("unsecuredLoginExtension_", "extension_")
_CLIENT_ID = ("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id")
_CLIENT_SECRET = (
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.client.secret",
)


def _first(options: Mapping[str, str], *names: str) -> str:
    return next((options[name] for name in names if options.get(name)), "")


def _config_principal(options: Mapping[str, str]) -> str:
    # librdkafka's own form: "principal=alice scope=…"
    pairs = (item.partition("=") for item in options.get("sasl.oauthbearer.config", "").split())
    return next((value for name, _, value in pairs if name == "principal"), "")


def _check_servers(servers: Sequence[str]) -> None:
    """Accept what Java's clients accept, except a protocol.

    Our two clients read other texts in different ways, and take a port out of range for another.
    """
    option = PREFIX + "bootstrap.servers"
    if not servers:
        raise ConfigError(
            "no Kafka servers are given",
            {"option": option},
            "Set it to host:port, or to a comma-separated list of them.",
        )
    for part in servers:
        found = _SERVER.fullmatch(part)
        if found is None or not 1 <= int(found["port"]) <= _LARGEST_PORT:
            raise ConfigError(
                "a part of the server list is not host:port",
                {"option": option, "part": part.rpartition("@")[2]},  # a password may precede it
                "Write host:port with a port from 1 to 65535, [address]:port for IPv6, and a comma "
                "between servers. Set the protocol by kafka.security.protocol.",
            )


def _refuse_unsendable(options: Mapping[str, str]) -> None:
    for name, value in options.items():
        if not is_sendable(value):
            raise ConfigError(
                "an option holds a character that no Kafka client can send",
                {"option": PREFIX + name},  # never its value, which may be a secret
                "Remove null characters and halves of surrogate pairs.",
            )


def _check_protocol(options: Mapping[str, str]) -> None:
    protocol = options.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise ConfigError(
            "the security protocol is not known",
            {"option": "kafka.security.protocol", "value": protocol},
            f"Use one of {', '.join(_PROTOCOLS)}.",
        )
    if protocol in ("PLAINTEXT", "SSL") and any(name.startswith("sasl.") for name in options):
        raise ConfigError(
            "SASL options are given, but the security protocol does not use them",
            {"kafka.security.protocol": protocol},
            f"Set kafka.security.protocol to SASL_{'SSL' if protocol == 'SSL' else 'PLAINTEXT'}.",
        )


class _LibrdkafkaToken:
    """librdkafka's form of a token function: called on a poll, and again before expiry.

    Attributes:
        failure: of the last call; the client reports only that there was one.
    """

    def __init__(self, token: KeptToken) -> None:
        self._token = token
        self.failure: StreamError | None = None

    def __call__(self, _config: str) -> tuple[str, float, str, dict[str, str]]:
        try:
            token = self._token.get(retry_for_s=_TOKEN_RETRY_S)
        except StreamError as err:
            self.failure = err
            raise
        self.failure = None
        return token.value, token.expires_at_s, token.principal, dict(token.extensions)


def _ssl_context(options: Mapping[str, str]) -> ssl.SSLContext:
    """Built here for all cases, because the wire client takes only files on its own."""
    try:
        context = ssl.create_default_context(
            cafile=options.get("ssl.ca.location"), cadata=options.get("ssl.ca.pem")
        )
        _load_certificate(context, options)
    except (OSError, ssl.SSLError) as err:
        raise ConfigError(
            "a TLS file cannot be used",
            {"cause": type(err).__name__, "reason": err.strerror or err},
            "Check that the PEM files of kafka.ssl.* exist, can be read, and fit their password.",
        ) from err
    if options.get("ssl.cipher.suites"):
        context.set_ciphers(options["ssl.cipher.suites"])
    if options.get("ssl.crl.location"):
        context.load_verify_locations(options["ssl.crl.location"])
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    verify = options.get("enable.ssl.certificate.verification", "true").lower() != "false"
    if not verify or options.get("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    if not verify:
        context.verify_mode = ssl.CERT_NONE
    return context


def _load_certificate(context: ssl.SSLContext, options: Mapping[str, str]) -> None:
    password: Callable[[], str] | None = None
    if "ssl.key.password" in options:
        password = lambda: options["ssl.key.password"]  # noqa: E731 - shadows the annotation above
    if location := options.get("ssl.certificate.location"):
        context.load_cert_chain(location, options.get("ssl.key.location", location), password)
    elif "ssl.certificate.pem" in options:
        # Python loads chains only from files: a private one, gone before this returns.
        with tempfile.TemporaryDirectory() as directory:
            chain = Path(directory) / "client.pem"
            chain.touch(mode=0o600)
            chain.write_text(f"{options.get('ssl.key.pem', '')}\n{options['ssl.certificate.pem']}")
            context.load_cert_chain(chain, None, password)
