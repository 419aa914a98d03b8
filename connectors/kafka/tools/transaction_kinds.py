"""Shows Kafka's committables to people: registered by the entry point group ``sluice.kinds``."""

from collections.abc import Mapping

from sluice.connectors.kafka.sink.handles import (
    COMMITTABLE_KIND,
    COMMITTABLE_VERSION,
    decode_handle,
)
from sluice.runtime.checkpoint.format.committable_kinds import EntryKind
from sluice.runtime.model.checkpoint_record import StateEntry

__all__ = ["TRANSACTION"]


def _describe(entry: StateEntry) -> Mapping[str, object]:
    handle = decode_handle(entry)
    return {
        "transactional_id": handle.transactional_id,
        "producer_id": handle.producer_id,
        "producer_epoch": handle.producer_epoch,
        "record_count": handle.record_count,
        "outputs": [f"{each.topic}: {each.records}" for each in handle.outputs],
        "sources": [
            f"{each.topic}-{each.partition}: {each.start_offset} to {each.end_offset}"
            for each in handle.sources
        ],
    }


TRANSACTION = EntryKind(
    kind=COMMITTABLE_KIND, latest_version=COMMITTABLE_VERSION, describe=_describe
)
"""A pre-committed Kafka transaction."""
