"""Options that several commands take by the same names."""

__all__ = ["BOOTSTRAP_NAMES"]

BOOTSTRAP_NAMES = ("--bootstrap-servers", "--bootstrap-server", "--bootstrap")
"""The first one is documented; the second is that of Kafka's own tools."""
