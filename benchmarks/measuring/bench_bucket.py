"""A bucket for measurements: of moto's server, or of the one that a variable names."""

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

from sluice.runtime.embedded.ports import HOST, free_ports

__all__ = ["BUCKET", "VARIABLE", "bench_bucket"]

BUCKET = "sluice-bench"
VARIABLE = "SLUICE_BENCH_S3"
"""Set to any value: the bucket `BUCKET` of the server that ``AWS_ENDPOINT_URL`` names, with the
usual variables of a login. moto's server is much slower than a store."""

_START_S = 120.0


@contextlib.contextmanager
def bench_bucket() -> Iterator[str]:
    """The URI of the bucket. The login is in this process's environment, which programs take
    over."""
    uri = f"s3://{BUCKET}"
    if VARIABLE in os.environ:
        yield uri
        return
    (port,) = free_ports(1)
    environment = {
        "AWS_ENDPOINT_URL": f"http://{HOST}:{port}",
        "AWS_ACCESS_KEY_ID": "sluice",
        "AWS_SECRET_ACCESS_KEY": "sluice",
        "AWS_REGION": "us-east-1",
    }
    command = [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _make_bucket(environment["AWS_ENDPOINT_URL"])
            os.environ.update(environment)
            yield uri
        finally:
            for name in environment:
                os.environ.pop(name, None)
            server.kill()


def _make_bucket(endpoint: str) -> None:
    deadline = time.monotonic() + _START_S
    request = urllib.request.Request(f"{endpoint}/{BUCKET}", data=b"", method="PUT")
    while True:
        try:
            urllib.request.urlopen(request, timeout=10).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)  # the server does not tell when it listens
