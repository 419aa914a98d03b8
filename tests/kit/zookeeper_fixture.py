"""A real ZooKeeper of three nodes for tests; it starts when first asked for."""

from collections.abc import Iterator

import pytest

from sluice.runtime.embedded.zookeeper.embedded_zookeeper import EmbeddedZooKeeper


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[EmbeddedZooKeeper]:
    """The session's ensemble; a test that stops nodes starts them again."""
    with EmbeddedZooKeeper(nodes=3) as servers:
        yield servers
