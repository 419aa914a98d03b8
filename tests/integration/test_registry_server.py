"""The tests' own schema registry: what tests of stops and frozen servers rely on."""

import json
import urllib.request

import pytest

from tests.kit.kafka.registry_server import EmbeddedRegistry
from tests.kit.waiting import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.extended]


def _call(url: str, body: object = None, *, timeout_s: float = PATIENCE_S) -> object:
    request = urllib.request.Request(url, data=json.dumps(body).encode() if body else None)
    request.add_header("Content-Type", "application/vnd.schemaregistry.v1+json")
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_schemas_keep_their_ids_over_a_restart(registry_server: EmbeddedRegistry, end: str) -> None:
    """Also on the same port, as a client expects that retries."""
    url = registry_server.url
    made = _call(f"{url}/subjects/kept-{end}/versions", {"schema": '"string"'})
    assert isinstance(made, dict)
    getattr(registry_server, end)()
    with pytest.raises(OSError, match="refused"):
        _call(f"{url}/subjects")
    assert registry_server.start().url == url
    assert _call(f"{url}/schemas/ids/{made['id']}") == {"schema": '"string"', "references": []}


def test_a_frozen_server_does_not_answer(registry_server: EmbeddedRegistry) -> None:
    registry_server.pause()
    try:
        with pytest.raises(TimeoutError):
            _call(f"{registry_server.url}/subjects", timeout_s=0.5)
    finally:
        registry_server.resume()
    assert isinstance(_call(f"{registry_server.url}/subjects"), list)
