"""What commands that reach Kafka take by the same names."""

import pytest

from sluice.connectors.kafka.tools.connection_options import connection_of
from sluice.runtime.errors import ConfigError


def test_servers_on_the_command_line_win_over_those_of_the_options() -> None:
    """As with every option that is given in both places."""
    made = connection_of("given:9092", {"kafka.bootstrap.servers": "file:9092"})
    assert made.bootstrap_servers == "given:9092"


def test_nothing_given_is_no_connection() -> None:
    assert connection_of(None, {}) is None


def test_an_option_without_its_prefix_is_refused_by_name() -> None:
    """Otherwise it would count for nothing, without a word."""
    with pytest.raises(ConfigError, match="lacks its prefix") as caught:
        connection_of("given:9092", {"security.protocol": "SSL"})
    assert "kafka.security.protocol" in str(caught.value)


def test_options_without_servers_reach_nothing() -> None:
    """They are not taken to a broker that happens to run on this machine."""
    with pytest.raises(ConfigError, match="bootstrap"):
        connection_of(None, {"kafka.security.protocol": "SSL"})
