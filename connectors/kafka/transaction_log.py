"""Which partition of the transaction log an id belongs to, and an id for each partition; pure."""

from functools import lru_cache
from itertools import count

__all__ = ["STATE_TOPIC", "id_for_each_partition", "partition_of"]

STATE_TOPIC = "__transaction_state"


def partition_of(transactional_id: str, partitions: int) -> int:
    """The partition of the log, of ``partitions``, that keeps the state of this id.

    As brokers count: Java's hash of the string, without its sign.
    """
    hashed = 0
    units = transactional_id.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & 0xFFFFFFFF
    if hashed >= 1 << 31:
        hashed = (1 << 32) - hashed
    # Java has no positive counterpart of its smallest number; brokers take 0 for it.
    return 0 if hashed == 1 << 31 else hashed % partitions


@lru_cache(maxsize=16)
def id_for_each_partition(prefix: str, partitions: int) -> tuple[str, ...]:
    """For each partition of the log, by its number, an id that begins with ``prefix``.

    Takes about ``partitions * log(partitions)`` tries, once per prefix: 1 ms for Kafka's 50.
    """
    found: dict[int, str] = {}
    numbers = count()
    while len(found) < partitions:
        candidate = f"{prefix}{next(numbers)}"
        found.setdefault(partition_of(candidate, partitions), candidate)
    return tuple(found[partition] for partition in range(partitions))
