"""What Amazon MSK does with a token: reads the URL in it, and checks the signature (SigV4)."""

import base64
import hashlib
import hmac
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["MskToken"]

_ALGORITHM = "AWS4-HMAC-SHA256"
_SIGNATURE = "X-Amz-Signature"
_NOT_SIGNED = {_SIGNATURE, "User-Agent"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MskToken:
    """A signed URL of ``kafka-cluster:Connect``."""

    host: str
    fields: Mapping[str, str]

    @classmethod
    def of(cls, token: str) -> "MskToken":
        """Read a token as it comes in a log-in."""
        url = urllib.parse.urlsplit(base64.urlsafe_b64decode(token + "==").decode())
        assert (url.scheme, url.path) == ("https", "/")
        fields = dict(urllib.parse.parse_qsl(url.query, strict_parsing=True))
        assert fields["Action"] == "kafka-cluster:Connect"
        assert fields["X-Amz-Algorithm"] == _ALGORITHM
        assert fields["X-Amz-SignedHeaders"] == "host"
        return cls(host=url.netloc, fields=fields)

    @property
    def access_key(self) -> str:
        """Id of the key that signed it, as the token claims."""
        return self.fields["X-Amz-Credential"].partition("/")[0]

    @property
    def session_token(self) -> str:
        """Of temporary credentials, else ""."""
        return self.fields.get("X-Amz-Security-Token", "")

    def is_signed_with(self, secret_key: str) -> bool:
        """Whether the secret key made its signature."""
        date, region, service, end = self.fields["X-Amz-Credential"].split("/")[1:]
        key = f"AWS4{secret_key}".encode()
        for part in (date, region, service, end):
            key = hmac.digest(key, part.encode(), "sha256")
        scope = "/".join((date, region, service, end))
        request = hashlib.sha256(self._canonical().encode()).hexdigest()
        signed = "\n".join((_ALGORITHM, self.fields["X-Amz-Date"], scope, request))
        signature = hmac.digest(key, signed.encode(), "sha256").hex()
        return hmac.compare_digest(signature, self.fields[_SIGNATURE])

    def _canonical(self) -> str:
        quoted = sorted(
            (urllib.parse.quote(name, safe="-_.~"), urllib.parse.quote(value, safe="-_.~"))
            for name, value in self.fields.items()
            if name not in _NOT_SIGNED
        )
        query = "&".join(f"{name}={value}" for name, value in quoted)
        body = hashlib.sha256(b"").hexdigest()
        return "\n".join(("GET", "/", query, f"host:{self.host}", "", "host", body))
