"""Single requests of a producer manually: no client of ours sends one for another's transaction."""

import socket
import struct

from sluice.connectors.kafka.sink.handles import TransactionIdentity
from tests.kit.kafka.kafka_proxy import ADD_PARTITIONS_TO_TXN, error_codes, parse_request

_INIT_PRODUCER_ID = 22
# Of AddPartitionsToTxn librdkafka's, those after 3 are for brokers; of InitProducerId the newest
# that has no tagged fields: an id's first request says nothing more in later ones.
_VERSIONS = {ADD_PARTITIONS_TO_TXN: 2, _INIT_PRODUCER_ID: 1}
_TIMEOUT_MS = 600_000
_ANSWER_S = 120.0
_ERRORS = {
    0: "",
    47: "INVALID_PRODUCER_EPOCH",
    48: "INVALID_TXN_STATE",
    49: "INVALID_PRODUCER_ID_MAPPING",
    51: "CONCURRENT_TRANSACTIONS",
    90: "PRODUCER_FENCED",
}


def add_partitions(
    bootstrap: str, transaction: TransactionIdentity, topic: str, partition: int
) -> str:
    """Send it to a cluster of one broker; the name of the error, "" when accepted."""
    frame = _frame(
        ADD_PARTITIONS_TO_TXN,
        _text(transaction.transactional_id)
        + struct.pack(">qh", transaction.producer_id, transaction.producer_epoch)
        + struct.pack(">i", 1)
        + _text(topic)
        + struct.pack(">ii", 1, partition),
    )
    (code,) = error_codes(parse_request(frame), _answer(bootstrap, frame))
    return _ERRORS[code]


def init_producer_id(bootstrap: str, transactional_id: str) -> TransactionIdentity | str:
    """As an id's new producer sends it first; what the cluster of one broker gives it, or the name
    of the error."""
    frame = _frame(_INIT_PRODUCER_ID, _text(transactional_id) + struct.pack(">i", _TIMEOUT_MS))
    # After size and correlation id: the throttle time.
    _, code, producer_id, epoch = struct.unpack_from(">ihqh", _answer(bootstrap, frame), 8)
    if code:
        return _ERRORS[code]
    return TransactionIdentity(
        transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch
    )


def _answer(bootstrap: str, frame: bytes) -> bytes:
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=_ANSWER_S) as broker:
        broker.sendall(frame)
        with broker.makefile("rb") as answers:
            size = answers.read(4)
            return size + answers.read(struct.unpack(">i", size)[0])


def _frame(api_key: int, body: bytes) -> bytes:
    head = struct.pack(">hhi", api_key, _VERSIONS[api_key], 1) + _text("sluice-tests")
    return struct.pack(">i", len(head) + len(body)) + head + body


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()
