"""A real S3 server for tests (moto's), and a bucket for each test."""

import http.client
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest

from sluice.runtime.embedded.ports import HOST
from tests.kit.objects.s3_proxy import S3Proxy

_REGION = "us-east-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Bucket:
    """An empty bucket, at the server or at a proxy before it."""

    name: str
    endpoint: str

    @property
    def uri(self) -> str:
        return f"s3://{self.name}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a user sets."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "sluice",
            "AWS_SECRET_ACCESS_KEY": "sluice-secret",
            "AWS_REGION": _REGION,
        }

    @property
    def storage_options(self) -> dict[str, str]:
        """The same as options."""
        return {name.lower(): value for name, value in self.environment.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxiedBucket(S3Bucket):
    """A bucket whose requests go through a proxy; ``direct`` is the same bucket without it."""

    proxy: S3Proxy = field(repr=False)
    direct: S3Bucket = field(repr=False)


def new_bucket(endpoint: str) -> S3Bucket:
    """An empty bucket of a server."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=60)
    connection.request("PUT", f"/{name}", body=b"")
    answer = connection.getresponse()
    assert answer.status == http.client.OK, answer.read()
    connection.close()
    return S3Bucket(name=name, endpoint=endpoint)


@contextmanager
def running_s3() -> Iterator[str]:
    """The endpoint of moto's S3 server, which runs in threads of this process."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # one line for each request otherwise
    server = ThreadedMotoServer(ip_address=HOST, port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        yield f"http://{HOST}:{port}"
    finally:
        server.stop()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The session's S3 server."""
    with running_s3() as endpoint:
        yield endpoint


@pytest.fixture
def s3(s3_endpoint: str) -> S3Bucket:
    """An empty bucket."""
    return new_bucket(s3_endpoint)


@pytest.fixture
def s3_proxied(s3_endpoint: str) -> Iterator[ProxiedBucket]:
    """An empty bucket whose requests go through a proxy."""
    direct = new_bucket(s3_endpoint)
    with S3Proxy(s3_endpoint) as proxy:
        yield ProxiedBucket(name=direct.name, endpoint=proxy.endpoint, proxy=proxy, direct=direct)


@pytest.fixture
def s3_environment(s3: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> S3Bucket:
    """An empty bucket that this process finds by its environment, as a user's does."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3
