"""The event time of a repartition topic: the watermarks that its messages carry. Executor."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sluice.connectors.kafka.repartition.repartition_messages import Message
from sluice.runtime.contracts import SplitTimes
from sluice.runtime.model.event_time import EventTime
from sluice.runtime.model.splits import SplitKey, SplitRange
from sluice.runtime.model.timestamps import later

__all__ = ["TopicTimes"]


class TopicTimes(SplitTimes):
    """Implements `sluice.runtime.contracts.SplitTimes`. Picklable.

    A message with a watermark follows all rows of its side in its partition that may be earlier, of
    any region that writes it. So the watermark of a partition is the latest one of each side, and
    of two sides the lesser one.

    Args:
        time: settings of the rows' time.
        sides: of the topic: 1 or 2.
    """

    def __init__(self, time: EventTime, sides: int) -> None:
        self.time = time
        self._sides = sides
        self._marks: dict[tuple[str, int], dict[int, int]] = {}

    def note(self, topic: str, messages: Sequence[Message]) -> None:
        """Messages that this run counts as read."""
        for message in messages:
            origin = message.origin
            if origin.watermark_ms is not None:
                sides = self._marks.setdefault((topic, message.partition), {})
                known_ms = sides.get(origin.side, origin.watermark_ms)
                sides[origin.side] = max(known_ms, origin.watermark_ms)

    def note_time(self, driver_ms: int) -> None:
        """See `SplitTimes`: the clock does not matter here."""

    def keep(self, splits: Iterable[SplitKey]) -> None:
        places = {(topic, partition) for _, topic, partition in splits}
        self._marks = {place: found for place, found in self._marks.items() if place in places}

    def forget(self) -> None:
        self._marks.clear()

    def ended(self, split: SplitRange) -> SplitRange:
        return replace(split, watermark_ms=later(split.watermark_ms, self.watermark_ms(split.key)))

    def watermark_ms(self, split: SplitKey) -> int | None:
        found = self._marks.get(split[1:], {})
        return min(found.values()) if len(found) == self._sides else None
