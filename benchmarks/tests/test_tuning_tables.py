"""A setting's value is compared with the default of the same turn."""

from benchmarks.tuning.tuning_tables import tables


def line(value: str, turn: int, cpu_s: float, load: str = "100 B") -> dict[str, object]:
    """A run of one setting."""
    figures = {"cpu_s_per_million": cpu_s, "per_s": 1e6 / cpu_s, "memory_bytes": 2.0**20}
    return {"setting": "linger.ms", "value": value, "load": load, "turn": turn, "figures": figures}


def test_a_slow_turn_is_not_held_against_a_value() -> None:
    lines = [line("default", 0, 1.0), line("0", 0, 1.5), line("0", 1, 6.0), line("default", 1, 4.0)]
    *_, default, other = tables(lines).splitlines()
    assert default.startswith("| `linger.ms` | default | 2 | 2.50 (1.00 to 4.00) |  |")
    assert other.startswith("| `linger.ms` | 0 | 2 | 3.75 (1.50 to 6.00) | 1.50 (1.50 to 1.50) x |")
