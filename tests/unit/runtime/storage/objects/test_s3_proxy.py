"""The proxy before the S3 server does what it says, and nothing else."""

import http.client
from urllib.parse import urlsplit

import pytest

from tests.kit.objects.s3_fixture import ProxiedBucket, S3Bucket
from tests.kit.objects.s3_proxy import FaultKind

_SIGNED = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=sluice/20260101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=unchecked"
}


def _put(bucket: S3Bucket, key: str, data: bytes, **headers: str) -> int:
    connection = http.client.HTTPConnection(urlsplit(bucket.endpoint).netloc, timeout=60)
    try:
        connection.request(
            "PUT", f"/{bucket.name}/{key}", body=data, headers={**_SIGNED, **headers}
        )
        return connection.getresponse().status
    finally:
        connection.close()


def _get(bucket: S3Bucket, key: str) -> bytes | None:
    connection = http.client.HTTPConnection(urlsplit(bucket.endpoint).netloc, timeout=60)
    try:
        connection.request("GET", f"/{bucket.name}/{key}", headers=_SIGNED)
        answer = connection.getresponse()
        body = answer.read()
        return body if answer.status == http.client.OK else None
    finally:
        connection.close()


_NEW = {"If-None-Match": "*"}


def test_requests_pass_and_are_noted(s3_proxied: ProxiedBucket) -> None:
    assert _put(s3_proxied, "a/b", b"x", **_NEW) == http.client.OK
    assert _put(s3_proxied, "a/b", b"y", **_NEW) == http.client.PRECONDITION_FAILED
    assert _get(s3_proxied, "a/b") == b"x"
    seen = [(each.method, each.key, each.conditional) for each in s3_proxied.proxy.requests]
    assert seen == [("PUT", "a/b", True), ("PUT", "a/b", True), ("GET", "a/b", False)]


@pytest.mark.parametrize(
    ("kind", "is_there"), [(FaultKind.DROPPED_BEFORE, False), (FaultKind.DROPPED_AFTER, True)]
)
def test_an_answer_is_lost_before_or_after_the_server_acts(
    s3_proxied: ProxiedBucket, kind: FaultKind, is_there: bool
) -> None:
    s3_proxied.proxy.add(kind, method="PUT")
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        _put(s3_proxied, "k", b"x")
    assert _get(s3_proxied, "k") == (b"x" if is_there else None)


def test_a_repeated_conditional_put_looks_refused_although_it_happened(
    s3_proxied: ProxiedBucket,
) -> None:
    s3_proxied.proxy.add(FaultKind.REPEATED)
    assert _put(s3_proxied, "k", b"x", **_NEW) == http.client.PRECONDITION_FAILED
    assert _get(s3_proxied.direct, "k") == b"x"


@pytest.mark.parametrize("status", [403, 412, 500, 503])
def test_a_request_is_refused_and_the_next_one_passes(
    s3_proxied: ProxiedBucket, status: int
) -> None:
    s3_proxied.proxy.add(FaultKind.REFUSED, status=status)
    assert _put(s3_proxied, "k", b"x") == status
    assert _get(s3_proxied, "k") is None


def test_half_a_body_arrives(s3_proxied: ProxiedBucket) -> None:
    _put(s3_proxied, "k", b"0123456789")
    s3_proxied.proxy.add(FaultKind.TRUNCATED, method="GET")
    with pytest.raises(http.client.IncompleteRead) as caught:
        _get(s3_proxied, "k")
    assert caught.value.partial == b"01234"


def test_a_store_that_ignores_the_condition(s3_proxied: ProxiedBucket) -> None:
    s3_proxied.proxy.add(FaultKind.UNCONDITIONAL, times=None)
    assert _put(s3_proxied, "k", b"x", **_NEW) == http.client.OK
    assert _put(s3_proxied, "k", b"y", **_NEW) == http.client.OK
