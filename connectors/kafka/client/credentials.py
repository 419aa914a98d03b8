"""SASL credentials as Spark users write them (JAAS), and OAUTHBEARER tokens. Values only.

Driver and executors; picklable, because executors connect with the same credentials.
"""

import base64
import importlib
import json
import re
import ssl
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sluice.runtime.errors import AuthenticationError, ConfigError, UnreachableError

__all__ = [
    "ClientCredentials",
    "ExtendedToken",
    "KerberosLogin",
    "OAuthToken",
    "Secret",
    "TokenFunction",
    "UnsecuredToken",
    "load_token_function",
    "parse_extensions",
    "parse_jaas",
    "without_credentials",
]


class Secret(str):
    """Text that libraries may use but that no ``repr`` shows.

    The admin client logs its whole configuration at DEBUG; this keeps passwords out of that line.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "'[redacted]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthToken:
    """A bearer token.

    Attributes:
        value: the token itself.
        expires_at_s: seconds since the Unix epoch.
        principal: the name it stands for; librdkafka asks for it.
        extensions: SASL extensions.
    """

    value: str = field(repr=False)
    expires_at_s: float
    principal: str = ""
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)


TokenFunction = Callable[[], OAuthToken]
"""Picklable; called in every process that connects, and again before a token expires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsecuredToken:
    """An unsecured JWT, for development: what Java makes of ``unsecuredLoginStringClaim_sub``."""

    principal: str
    lifetime_s: float = 3600.0

    def __call__(self) -> OAuthToken:
        now_s = time.time()
        # Whole seconds in the past: the broker's clock, in milliseconds, may be slower than ours.
        claims = {"sub": self.principal, "iat": int(now_s), "exp": now_s + self.lifetime_s}
        value = f"{_segment({'alg': 'none'})}.{_segment(claims)}."
        return OAuthToken(
            value=value, expires_at_s=now_s + self.lifetime_s, principal=self.principal
        )


def _segment(content: Mapping[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCredentials:
    """Fetches tokens by OAuth's client-credentials grant, for both Kafka clients alike.

    Attributes:
        token_url: the issuer's token endpoint; what may be secret in it is not shown.
        client_id, client_secret: of this application.
        scope: of the request, or "".
        ca_file: PEM file or directory that the endpoint's certificate is checked against; None, or
            librdkafka's word ``probe``: the system's.
        ca_pem: the certificates themselves, beside those.
        timeout_s: of one request.
    """

    token_url: str = field(repr=False)
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    ca_file: str | None = None
    ca_pem: str | None = field(default=None, repr=False)
    timeout_s: float = 10.0

    def __call__(self) -> OAuthToken:
        """Ask once.

        Raises:
            UnreachableError: the endpoint does not answer, or cannot for the moment.
            AuthenticationError: it refuses, and would again.
            ConfigError: its certificates cannot be read.
        """
        import urllib3  # only processes that use this grant pay for it

        fields = {"grant_type": "client_credentials"} | (
            {"scope": self.scope} if self.scope else {}
        )
        try:
            with urllib3.PoolManager(ssl_context=self._ssl_context()) as pool:
                answer = pool.request(
                    "POST",
                    self.token_url,
                    fields=fields,
                    encode_multipart=False,
                    headers=urllib3.make_headers(
                        basic_auth=f"{self.client_id}:{self.client_secret}"
                    ),
                    timeout=self.timeout_s,
                    retries=urllib3.Retry(2, connect=0, read=0, other=0),  # of redirects alone
                )
        except urllib3.exceptions.HTTPError as err:
            reason = getattr(err, "reason", None) or err
            if isinstance(reason, urllib3.exceptions.SSLError) and reason.args:
                reason = reason.args[0]
            error = self._refused if _is_lasting(reason) else self._away
            raise error(f"{type(reason).__name__} {_tls_reason(reason)}".rstrip()) from None
        body = _json_object(answer.data)
        if answer.status == 200:
            return self._token(body)
        text = f"HTTP {answer.status} {body.get('error', '')}".rstrip()
        if answer.status in _FOR_THE_MOMENT or answer.status >= 500 or body.get("error") in _LATER:
            raise self._away(text)
        raise self._refused(text)

    def _ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context of the endpoint; None: it does not use TLS."""
        if not self.token_url.lower().startswith("https:"):
            return None
        place = Path(self.ca_file) if self.ca_file not in (None, "", "probe") else None
        try:
            return ssl.create_default_context(
                cafile=None if place is None or place.is_dir() else str(place),
                capath=str(place) if place is not None and place.is_dir() else None,
                cadata=self.ca_pem or None,
            )
        except (OSError, ssl.SSLError) as err:
            raise ConfigError(
                "the certificates of the token endpoint cannot be read",
                {"kafka.https.ca.location": self.ca_file, "cause": type(err).__name__},
                "Check kafka.https.ca.location or kafka.https.ca.pem: certificates in PEM.",
            ) from err

    def _token(self, body: Mapping[str, object]) -> OAuthToken:
        value, lifetime = body.get("access_token"), body.get("expires_in", 300)
        if not isinstance(value, str) or not isinstance(lifetime, int | float):
            raise self._refused("an answer without access_token")
        return OAuthToken(
            value=value, expires_at_s=time.time() + lifetime, principal=self.client_id
        )

    def _where(self, answer: str) -> Mapping[str, object]:
        return {
            "token_url": without_credentials(self.token_url),
            "client_id": self.client_id,
            "answer": answer,
        }

    def _away(self, answer: str) -> UnreachableError:
        return UnreachableError(
            "the token endpoint gives no token at the moment",
            self._where(answer),
            "Check that kafka.sasl.oauthbearer.token.endpoint.url can be reached from here.",
        )

    def _refused(self, answer: str) -> AuthenticationError:
        return AuthenticationError(
            "the token endpoint refuses a token",
            self._where(answer),
            "Check kafka.sasl.oauthbearer.token.endpoint.url, the client id and its secret.",
        )


def without_credentials(url: str) -> str:
    """The URL without user, password, query and fragment, each of which may be secret."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return "(not a URL)"
    place = parts.netloc.rpartition("@")[2]
    return urllib.parse.urlunsplit((parts.scheme, place, parts.path, "", ""))


_FOR_THE_MOMENT = frozenset({408, 425, 429})
_LATER = frozenset({"server_error", "slow_down", "temporarily_unavailable"})  # RFC 6749, RFC 8628


def _is_lasting(reason: Exception) -> bool:
    """Whether an endpoint that gives no answer would give none again.

    An alert is a server's own refusal, of a client without a certificate or of an old version. One
    that ends the handshake without a word, or in plain text, is a balancer whose servers are away.
    """
    import urllib3  # as above

    text = _tls_reason(reason)
    is_alert = "_ALERT_" in text and "INTERNAL_ERROR" not in text
    lasting = (ssl.CertificateError, urllib3.exceptions.LocationValueError)
    return is_alert or text == "UNSUPPORTED_PROTOCOL" or isinstance(reason, lasting)


def _tls_reason(error: Exception) -> str:
    return (error.reason or "") if isinstance(error, ssl.SSLError) else ""


def _json_object(data: bytes) -> Mapping[str, object]:
    """Empty where it is none."""
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendedToken:
    """A token function with SASL extensions that the user has named beside it.

    Attributes:
        function: gives the token; extensions of its own win.
        extensions: names and values.
    """

    function: TokenFunction
    extensions: tuple[tuple[str, str], ...] = field(repr=False)

    def __call__(self) -> OAuthToken:
        token = self.function()
        return replace(token, extensions={**dict(self.extensions), **token.extensions})


def parse_extensions(text: str) -> dict[str, str]:
    """As librdkafka writes them, ``name=value,name=value``.

    Raises:
        ConfigError: without the text, which may be a secret.
    """
    pairs = [item.strip().partition("=") for item in text.split(",") if item.strip()]
    if any(not name.strip() or not separator for name, separator, _ in pairs):
        raise ConfigError(
            "SASL extensions cannot be read",
            {"option": "kafka.sasl.oauthbearer.extensions"},
            "Write: name=value,name=value.",
        )
    return {name.strip(): value.strip() for name, _, value in pairs}


def load_token_function(path: str) -> TokenFunction:
    """The function named by ``package.module:function``."""
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as err:
        raise ConfigError(
            "the token function cannot be imported",
            {"option": "kafka.sasl.oauthbearer.token.function", "value": path, "cause": err},
            "Name it package.module:function, importable in the driver and in every executor.",
        ) from err
    if not callable(found):
        raise ConfigError(
            "the token function is not callable",
            {"option": "kafka.sasl.oauthbearer.token.function", "value": path},
            "Name a function without arguments that returns an OAuthToken.",
        )
    return _NamedFunction(path, found)


class _NamedFunction:
    """Pickled by name, so that executors import it themselves."""

    def __init__(self, path: str, function: Callable[[], OAuthToken]) -> None:
        self._path, self._function = path, function

    def __call__(self) -> OAuthToken:
        return self._function()

    def __repr__(self) -> str:
        return self._path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _NamedFunction) and other._path == self._path

    def __hash__(self) -> int:
        return hash(self._path)

    def __reduce__(self) -> tuple[Callable[[str], TokenFunction], tuple[str]]:
        return load_token_function, (self._path,)


@dataclass(frozen=True, slots=True, kw_only=True)
class KerberosLogin:
    """A login by Kerberos (GSSAPI).

    Attributes:
        service: of the brokers' principals, ``kafka`` in ``kafka/host@REALM``.
        principal, keytab: of the client; empty: the ticket cache has its ticket.
        options: of librdkafka, which runs ``kinit``.
    """

    service: str
    principal: str
    keytab: str
    options: Mapping[str, str]

    @classmethod
    def read(cls, options: Mapping[str, str], jaas: Mapping[str, str]) -> "KerberosLogin":
        """From Kafka's options, and the options of Java's login module.

        Raises:
            ConfigError: the service is missing, or one of principal and keytab.
        """
        prefix = "sasl.kerberos."
        service = options.get(f"{prefix}service.name") or jaas.get("serviceName", "")
        principal = options.get(f"{prefix}principal") or jaas.get("principal", "")
        keytab = options.get(f"{prefix}keytab") or jaas.get("keyTab", "")
        if not service or bool(principal) != bool(keytab):
            raise ConfigError(
                "the Kerberos login is incomplete",
                {"kafka.sasl.mechanism": "GSSAPI"},
                "Set kafka.sasl.kerberos.service.name, and kafka.sasl.kerberos.principal with "
                "kafka.sasl.kerberos.keytab, or run kinit on the driver and every executor.",
            )
        found = {f"{prefix}service.name": service}
        if keytab:
            found |= {f"{prefix}principal": principal, f"{prefix}keytab": keytab}
            for name in ("kinit.cmd", "min.time.before.relogin"):
                if value := options.get(prefix + name):
                    found[prefix + name] = value
        else:
            found[f"{prefix}min.time.before.relogin"] = "0"  # librdkafka runs no kinit
        return cls(service=service, principal=principal, keytab=keytab, options=found)


_MODULES = {
    "PlainLoginModule": "PLAIN",
    "ScramLoginModule": "SCRAM",
    "OAuthBearerLoginModule": "OAUTHBEARER",
    "Krb5LoginModule": "GSSAPI",
    "IAMLoginModule": "AWS_MSK_IAM",
}
_OPTION = re.compile(
    r"""\s*([\w.-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))"""
)


def parse_jaas(text: str) -> tuple[str, dict[str, str]]:
    """The login module's family (PLAIN, SCRAM, OAUTHBEARER, …) and its options.

    Raises:
        ConfigError: without the text, which holds a password.
    """
    head, flag, rest = [*text.split(None, 2), "", "", ""][:3]
    family = _MODULES.get(head.rsplit(".", 1)[-1])
    if family is None or flag.rstrip(";").lower() not in _FLAGS:
        raise _bad_jaas("it must name a login module of PLAIN, SCRAM, OAUTHBEARER or GSSAPI")
    options: dict[str, str] = {}
    position = 0
    while rest[position:].strip(" \t\r\n;"):
        found = _OPTION.match(rest, position)
        if found is None:
            raise _bad_jaas('its options must be of the form name="value"')
        quoted = next(group for group in found.groups()[1:] if group is not None)
        options[found.group(1)] = re.sub(r"\\(.)", r"\1", quoted)
        position = found.end()
    return family, options


_FLAGS = {"required", "requisite", "sufficient", "optional"}


def _bad_jaas(reason: str) -> ConfigError:
    return ConfigError(
        f"the JAAS configuration cannot be read: {reason}",
        {"option": "kafka.sasl.jaas.config"},
        "Write: org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="…" password="…";',
    )
