"""One AddPartitionsToTxn by hand: no client of ours sends it for a transaction of another one."""

import socket
import struct

from connectors.kafka.handles import TransactionIdentity
from tests.kafka_proxy import ADD_PARTITIONS_TO_TXN, error_codes, parse_request

__all__ = ["add_partitions"]

_VERSION = 2  # librdkafka's; the versions behind 3 are for brokers
_ANSWER_S = 120.0
_ERRORS = {
    0: "",
    47: "INVALID_PRODUCER_EPOCH",
    48: "INVALID_TXN_STATE",
    51: "CONCURRENT_TRANSACTIONS",
    90: "PRODUCER_FENCED",
}


def add_partitions(
    bootstrap: str, transaction: TransactionIdentity, topic: str, partition: int
) -> str:
    """Send it to a cluster of one broker; the name of the error, "" when accepted."""
    host, _, port = bootstrap.rpartition(":")
    frame = _frame(transaction, topic, partition)
    with socket.create_connection((host, int(port)), timeout=_ANSWER_S) as broker:
        broker.sendall(frame)
        with broker.makefile("rb") as answers:
            size = answers.read(4)
            answer = size + answers.read(struct.unpack(">i", size)[0])
    (code,) = error_codes(parse_request(frame), answer)
    return _ERRORS[code]


def _frame(transaction: TransactionIdentity, topic: str, partition: int) -> bytes:
    request = (
        struct.pack(">hhi", ADD_PARTITIONS_TO_TXN, _VERSION, 1)
        + _text("sluice-tests")
        + _text(transaction.transactional_id)
        + struct.pack(">qh", transaction.producer_id, transaction.producer_epoch)
        + struct.pack(">i", 1)
        + _text(topic)
        + struct.pack(">ii", 1, partition)
    )
    return struct.pack(">i", len(request)) + request


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()
