"""The setting that chooses how records get from Kafka into Arrow and back. Pure."""

import enum

from runtime.errors import ConfigError
from runtime.spelling import nearest

__all__ = ["HotPath", "hot_path_of"]


class HotPath(enum.Enum):
    """Who moves the records of a task."""

    AUTO = "auto"  # compiled code where it can be had, else confluent-kafka's own calls
    NATIVE = "native"  # compiled code; where it cannot be had, the task fails and says why
    PLAIN = "plain"  # confluent-kafka's own calls, one Python object per record


def hot_path_of(text: str) -> HotPath:
    """The setting in words.

    Raises:
        ConfigError: there is none of this name.
    """
    try:
        return HotPath(text.strip().lower())
    except ValueError:
        known = [each.value for each in HotPath]
        guess = nearest(text.lower(), set(known))
        raise ConfigError(
            "unknown hot path",
            {"hotPath": text},
            f"Did you mean {guess}?" if guess else f"Use one of {', '.join(known)}.",
        ) from None
