"""How options spell durations."""

import pytest

from sluice.connectors.kafka.client.client_options import seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250us", 0.00025),
        ("500 ms", 0.5),
        ("1.5s", 1.5),
        (" 10SEC ", 10),
        ("15m", 900),
        ("2 minutes", 120),
        ("1h", 3600),
        ("1d", 86400),
    ],
)
def test_a_unit_is_one_whatever_a_bare_number_means(text: str, seconds: float) -> None:
    assert seconds_of(text, bare="ms") == seconds_of(text, bare="s") == pytest.approx(seconds)


def test_a_bare_number_has_the_options_unit() -> None:
    """Spark's are milliseconds, ours seconds."""
    assert seconds_of("1500", bare="ms") == pytest.approx(1.5)
    assert seconds_of("1500", bare="s") == 1500


@pytest.mark.parametrize("text", ["", "soon", "-1s", "1 month", "1e3", "1.", ".5", "9" * 19])
def test_anything_else_is_no_duration(text: str) -> None:
    assert seconds_of(text, bare="s") is None
