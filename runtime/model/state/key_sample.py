"""In which partition a few keys are, as tasks report it to the coordinator. Frozen, picklable."""

from dataclasses import dataclass

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.state.split_key import SplitKey

__all__ = ["KeySample", "in_two_partitions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySample:
    """Some keys of one split, those with the smallest hashes: other tasks choose the same keys.

    Attributes:
        operator_id: of a ``key_by(…, partitioned=True)``.
        name: of that function.
        split: that has the keys.
        hashes: of the keys, 64 bits each.
    """

    operator_id: str
    name: str
    split: SplitKey
    hashes: tuple[int, ...]


def in_two_partitions(name: str, first: SplitKey, second: SplitKey) -> ConfigError:
    """For a key that has two states, because two partitions have it.

    Args:
        name: of the ``key_by``.
    """
    places = ",".join(f"{topic}-{partition}" for _, topic, partition in (first, second))
    return ConfigError(
        "a key is in two partitions, although key_by says partitioned",
        {"key_by": name, "partitions": places},
        "Leave partitioned out, or send all records of a key to one partition. If the topic got "
        "more partitions, older records of a key are in other ones.",
    )
