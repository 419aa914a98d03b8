"""Whether two tasks have the same key, although their pipeline says ``partitioned``. Pure."""

from collections.abc import Iterable

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.state.key_sample import KeySample, in_two_partitions
from sluice.runtime.model.state.split_key import SplitKey

__all__ = ["KeySamples"]

_MOST = 100_000


class KeySamples:
    """The partition of the keys that tasks have reported. A new coordinator knows none: tasks
    report them again."""

    def __init__(self) -> None:
        self._split_of: dict[tuple[str, str, str, int], SplitKey] = {}

    def add(self, samples: Iterable[KeySample]) -> ConfigError | None:
        """Remember them; returns the error if a key is in two partitions of a source's topic."""
        for sample in samples:
            source_id, topic, _ = sample.split
            for each in sample.hashes:
                key = sample.operator_id, source_id, topic, each
                known = self._split_of.get(key)
                if known is not None and known != sample.split:
                    return in_two_partitions(sample.name, known, sample.split)
                if len(self._split_of) < _MOST:
                    self._split_of[key] = sample.split
        return None
