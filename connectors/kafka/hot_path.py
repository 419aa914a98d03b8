"""The setting that chooses how records get from Kafka into Arrow and back. Pure."""

import enum

from runtime.spelling import choice_of

__all__ = ["HotPath", "hot_path_of"]


class HotPath(enum.Enum):
    """Who moves the records of a task."""

    AUTO = "auto"  # compiled code where it can be had, else confluent-kafka's own calls
    NATIVE = "native"  # compiled code; where it cannot be had, the task fails and says why
    PLAIN = "plain"  # confluent-kafka's own calls, one Python object per record


def hot_path_of(given: HotPath | str) -> HotPath:
    """The setting, in words or as it is.

    Raises:
        ConfigError: there is none of this name.
    """
    return choice_of(HotPath, given, setting="hotPath")
