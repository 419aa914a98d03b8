"""A real Azure Blob server for tests (Azurite), and a container for each test."""

import contextlib
import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from azure.storage.blob import ContainerClient

from sluice.runtime.embedded.ports import HOST, free_ports
from tests.kit.objects.s3_proxy import S3Proxy
from tests.kit.waiting import PATIENCE_S, wait_for

_PROGRAM = "azurite-blob"
_REQUIRED = "SLUICE_REQUIRE_AZURITE"
_ACCOUNT = "devstoreaccount1"
# Azurite's own, as its documentation has it.
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureContainer:
    """An empty container; its server is reached through a proxy."""

    name: str
    endpoint: str
    direct_endpoint: str
    proxy: S3Proxy

    @property
    def uri(self) -> str:
        return f"abfss://{self.name}@{_ACCOUNT}.dfs.core.windows.net"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a user sets."""
        return {
            "AZURE_STORAGE_ENDPOINT": f"{self.endpoint}/{_ACCOUNT}",
            "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
        }

    def client(self) -> ContainerClient:
        """Azure's own client, without the proxy."""
        return ContainerClient(f"{self.direct_endpoint}/{_ACCOUNT}", self.name, credential=_KEY)

    def read(self, key: str) -> bytes | None:
        """A blob, as another program sees it."""
        with self.client() as client:
            blob = client.get_blob_client(key)
            return bytes(blob.download_blob().readall()) if blob.exists() else None


@pytest.fixture(scope="session")
def azurite() -> Iterator[str]:
    """The endpoint of the session's server. Skips without Azurite; with
    ``SLUICE_REQUIRE_AZURITE=1`` an error. ``make test-azure`` installs it."""
    program = shutil.which(_PROGRAM)
    if program is None:
        if os.environ.get(_REQUIRED):
            pytest.fail(f"{_PROGRAM} is not on the path", pytrace=False)
        pytest.skip("Azurite is not installed: run make test-azure")
    (port,) = free_ports(1)
    arguments = ["--blobHost", HOST, "--blobPort", str(port), "--inMemoryPersistence"]
    options = ["--skipApiVersionCheck", "--silent", "--disableTelemetry"]
    server = subprocess.Popen([program, *arguments, *options], stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: _answers(server, port), timeout_s=PATIENCE_S, what="Azurite")
        yield f"http://{HOST}:{port}"
    finally:
        server.terminate()
        server.wait()


@pytest.fixture
def azure(azurite: str) -> Iterator[AzureContainer]:
    """An empty container."""
    with S3Proxy(azurite) as proxy:
        made = AzureContainer(
            name=f"container-{uuid.uuid4().hex[:12]}",
            endpoint=proxy.endpoint,
            direct_endpoint=azurite,
            proxy=proxy,
        )
        with made.client() as client:
            client.create_container()
        yield made


def _answers(server: "subprocess.Popen[bytes]", port: int) -> bool:
    assert server.poll() is None, "Azurite has ended"
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False
