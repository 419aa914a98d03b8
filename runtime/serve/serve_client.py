"""A client of ``sluice serve``."""

import json
from typing import Any, Self
from urllib.parse import quote

import urllib3

from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    StreamError,
    UnreachableError,
    UnsupportedFormatError,
    WaitedTooLongError,
)
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.model.json_values import to_json
from sluice.runtime.service.error_json import error_from_json

__all__ = ["ServeClient", "path_of"]

_CONNECT_S = 5.0


def path_of(*parts: str) -> str:
    """``/v1/…`` with each part quoted."""
    return "/".join(("/v1", *(quote(part, safe="") for part in parts)))


class ServeClient:
    """Each call is sent once: a repeated command would act twice.

    Args:
        url: ``http://host:port`` or ``https``.
        token: of the service.
        ca_file: PEM file of the authority of its certificate; None: the system's.
        timeout_s: for an answer.
    """

    def __init__(
        self, url: str, token: str, *, ca_file: str | None = None, timeout_s: float = 90.0
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(
                "the service's address is neither http:// nor https://",
                {"url": url},
                "Give --url http://host:port.",
            )
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._pool = urllib3.PoolManager(
            num_pools=1,
            retries=False,
            ca_certs=ca_file,
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )

    def get(self, path: str) -> dict[str, Any]:
        """The JSON of an answer."""
        return self._json("GET", path)

    def text(self, path: str) -> str:
        """The text of an answer."""
        response = self._request("GET", path)
        if response.status != 200:
            raise self._error(response, path)
        return response.data.decode(errors="replace")

    def post(self, path: str, body: object) -> dict[str, Any]:
        """The JSON of an answer to a command; ``body``: a dataclass."""
        return self._json("POST", path, json.dumps(to_json(body)))

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _json(self, method: str, path: str, content: str | None = None) -> dict[str, Any]:
        response = self._request(method, path, content)
        found = _parsed(response)
        if response.status != 200 or not isinstance(found, dict):
            raise self._error(response, path)
        return found

    def _request(
        self, method: str, path: str, content: str | None = None
    ) -> urllib3.BaseHTTPResponse:
        where: dict[str, object] = {"url": self._url, "path": path}
        try:
            return self._pool.request(
                method,
                f"{self._url}{path}",
                body=content,
                timeout=urllib3.Timeout(connect=_CONNECT_S, read=self._timeout_s),
                redirect=False,  # the token must not follow a redirect to another host
            )
        except urllib3.exceptions.ReadTimeoutError as err:
            raise WaitedTooLongError(
                "the service does not answer a request",
                {**where, "waited_s": self._timeout_s},
                "Look whether it took effect: `sluice service job`. Read the service's log.",
            ) from err
        except urllib3.exceptions.SSLError as err:
            raise ConfigError(
                "the service's certificate cannot be trusted, or it speaks no TLS",
                {**where, "reason": err},
                "Give --ca-file with the authority of its certificate, or an http:// address.",
            ) from err
        except urllib3.exceptions.HTTPError as err:
            raise UnreachableError(
                "no service answers at this address",
                {**where, "reason": type(err).__name__},
                "Start it: `sluice serve --registry ...`, or give its --url.",
            ) from err
        except (ValueError, OSError) as err:
            # Without its cause, which would show an invalid token.
            raise ConfigError(
                "a request cannot be made with this address, token or authority",
                {**where, "reason": type(err).__name__},
                "Check --url, --token-file and --ca-file.",
            ) from None

    def _error(self, response: urllib3.BaseHTTPResponse, path: str) -> StreamError:
        found = _parsed(response)
        error = found.get("error") if isinstance(found, dict) else None
        if isinstance(error, dict):
            return error_from_json(error)
        where = {"url": self._url, "path": path, "status": response.status}
        if response.status == 401:
            return AuthenticationError(
                "another service or a proxy requires credentials", where, "Check --url."
            )
        return UnsupportedFormatError(
            "the answer does not come from `sluice serve`",
            where,
            "Check --url, and that both sides run the same version of Sluice.",
        )


def _parsed(response: urllib3.BaseHTTPResponse) -> object:
    try:
        return parsed_json(response.data)
    except ValueError:
        return None
