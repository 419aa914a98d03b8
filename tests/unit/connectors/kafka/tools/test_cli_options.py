"""What commands that reach Kafka take by the same names."""

import pytest

from sluice.connectors.kafka.tools.connection_options import connection_of
from sluice.runtime.errors import ConfigError


def test_an_option_without_its_prefix_is_refused_by_name() -> None:
    """Otherwise it would count for nothing, without a word."""
    with pytest.raises(ConfigError, match="lacks its prefix") as caught:
        connection_of("given:9092", {"security.protocol": "SSL"})
    assert "kafka.security.protocol" in str(caught.value)


def test_options_without_servers_reach_nothing() -> None:
    """They are not taken to a broker that happens to run on this machine."""
    with pytest.raises(ConfigError, match="bootstrap"):
        connection_of(None, {"kafka.security.protocol": "SSL"})
