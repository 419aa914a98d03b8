"""An OAuth server of this process: client credentials in, signed tokens out, keys for brokers."""

import base64
import http.server
import json
import threading
import time
import urllib.parse
import uuid
from collections.abc import Mapping
from typing import Self

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from sluice.runtime.embedded.ports import HOST

__all__ = ["AUDIENCE", "TokenServer"]

AUDIENCE = "kafka-tests"
_KEY_ID = "tests"


class TokenServer:
    """Issues JSON web tokens by the client-credentials grant; any thread.

    Attributes:
        client_id, client_secret: that it accepts.
        scope: that requests must have; "": any.
        lifetime_s: of the next tokens.
        refusal: an HTTP status with which it answers every request; None: it issues tokens.
        issued: number of tokens.
    """

    def __init__(self, *, lifetime_s: float = 3600.0, scope: str = "") -> None:
        self.client_id, self.client_secret = "orders", "open-sesame-4711"
        self.scope = scope
        self.lifetime_s = lifetime_s
        self.refusal: int | None = None
        self.issued = 0
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._server = self._serve((HOST, 0))
        self._address = self._server.server_address[:2]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def token_url(self) -> str:
        """Its token endpoint."""
        return f"http://{HOST}:{self._address[1]}/token"

    @property
    def keys_url(self) -> str:
        """Address of its public keys, for brokers."""
        return f"http://{HOST}:{self._address[1]}/keys"

    def stop(self) -> None:
        """Refuse connections."""
        self._server.shutdown()
        self._server.server_close()

    def start_again(self) -> None:
        """On the same port, with the same key."""
        self._server = self._serve(self._address)

    def token(self, *, audience: str = AUDIENCE, **claims: object) -> str:
        """A signed token; ``claims`` win."""
        now = time.time()
        held = {"sub": self.client_id, "aud": audience, "iss": "tests", "jti": uuid.uuid4().hex}
        held |= {"iat": int(now) - 1, "exp": now + self.lifetime_s, "scope": "kafka"}
        head = {"alg": "RS256", "typ": "JWT", "kid": _KEY_ID}
        text = f"{_segment(head)}.{_segment(held | claims)}"
        signature = self._key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{text}.{_base64(signature)}"

    def answer_token(self, authorization: str, body: str) -> tuple[int, Mapping[str, object]]:
        """Answer a request at the token endpoint."""
        if self.refusal is not None:
            return self.refusal, {"error": "server_error" if self.refusal >= 500 else "denied"}
        expected = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        if authorization != f"Basic {expected}":
            return 401, {"error": "invalid_client"}
        fields = dict(urllib.parse.parse_qsl(body))
        if fields.get("grant_type") != "client_credentials":
            return 400, {"error": "unsupported_grant_type"}
        if self.scope and fields.get("scope") != self.scope:
            return 400, {"error": "invalid_scope"}
        self.issued += 1
        return 200, {
            "access_token": self.token(),
            "token_type": "Bearer",
            "expires_in": self.lifetime_s,
        }

    def keys(self) -> Mapping[str, object]:
        """The key set (RFC 7517)."""
        public = self._key.public_key().public_numbers()
        size = (public.n.bit_length() + 7) // 8
        key = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": _KEY_ID}
        key |= {"n": _base64(public.n.to_bytes(size)), "e": _base64(public.e.to_bytes(3))}
        return {"keys": [key]}

    def _serve(self, address: tuple[str, int]) -> http.server.ThreadingHTTPServer:
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, issuer.keys())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                authorization = self.headers.get("Authorization", "")
                self._answer(*issuer.answer_token(authorization, body))

            def _answer(self, status: int, content: Mapping[str, object]) -> None:
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
                """Quiet."""

        server = http.server.ThreadingHTTPServer(address, Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server


def _segment(content: Mapping[str, object]) -> str:
    return _base64(json.dumps(content).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
