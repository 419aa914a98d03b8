"""Uploads to Google Cloud Storage: S3's calls in its XML interface, with a token of Google's."""

import functools
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import google.auth
import google.auth.transport.urllib3
import urllib3
from botocore import UNSIGNED
from google.auth.exceptions import GoogleAuthError
from google.oauth2 import service_account

from sluice.runtime.errors import AuthenticationError
from sluice.runtime.storage.objects.s3_uploads import S3Uploads

__all__ = ["GoogleUploads"]

_ENDPOINT = "https://storage.googleapis.com"
_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
_S3S_METADATA, _GOOGLES_METADATA = "x-amz-meta-", "x-goog-meta-"
_FILES = ("google_service_account", "google_service_account_path", "service_account")
_KEYS = ("google_service_account_key", "service_account_key")


@dataclass(frozen=True, kw_only=True)  # no slots: it keeps its client
class GoogleUploads(S3Uploads):
    """`MultipartUploads` of a bucket of Google's. A picklable value.

    Attributes:
        google: obstore's options of the store: a service account's file or key; without one, the
            credentials that Google's libraries find in the environment.
    """

    google: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold keys

    @functools.cached_property
    def _s3(self) -> Any:  # noqa: ANN401 - botocore makes its clients' classes at run time
        endpoint = self.google.get("google_base_url", _ENDPOINT)
        client = self._made_client(
            {"endpoint_url": endpoint, "region_name": "auto"},
            {"signature_version": UNSIGNED, "s3": {"addressing_style": "path"}},
        )
        is_open = self.google.get("google_skip_signature", "").lower() == "true"
        token = None if is_open else _Token(self.google)

        def authorise(request: Any, **_: object) -> None:  # noqa: ANN401 - botocore's request
            for name in [n for n in request.headers if n.lower().startswith(_S3S_METADATA)]:
                value = request.headers[name]
                del request.headers[name]
                request.headers[_GOOGLES_METADATA + name[len(_S3S_METADATA) :]] = value
            if token is not None:
                request.headers["Authorization"] = f"Bearer {token.read()}"

        client.meta.events.register("before-sign.s3", authorise)
        return client


class _Token:
    """An access token, which is renewed before it expires. Any thread."""

    def __init__(self, google_options: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._options = google_options
        self._credentials: Any = None

    def read(self) -> str:
        """A token that is valid now.

        Raises:
            AuthenticationError: there are no credentials, or Google refuses them.
        """
        with self._lock:
            try:
                if self._credentials is None:
                    self._credentials = _credentials(self._options)
                if not self._credentials.valid:
                    pool = urllib3.PoolManager()
                    requests: Any = google.auth.transport.urllib3  # has no types
                    self._credentials.refresh(requests.Request(pool))
            except (GoogleAuthError, OSError, ValueError) as err:
                raise AuthenticationError(
                    "there are no credentials for Google Cloud Storage",
                    {"error": str(err)},
                    "Set GOOGLE_APPLICATION_CREDENTIALS to a service account's file.",
                ) from err
            return str(self._credentials.token)


def _credentials(options: Mapping[str, str]) -> Any:  # noqa: ANN401 - no types
    made: Any = service_account.Credentials  # has no types
    for name in _KEYS:
        if name in options:
            return made.from_service_account_info(json.loads(options[name]), scopes=_SCOPES)
    for name in _FILES:
        if name in options:
            return made.from_service_account_file(options[name], scopes=_SCOPES)
    found, _ = google.auth.default(scopes=_SCOPES)
    return found
