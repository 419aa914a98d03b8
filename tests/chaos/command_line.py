"""What the programs of the bed share: the examples' arguments, the copy, the triggers."""

import argparse
import os

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter


def parsed(description: str | None) -> argparse.Namespace:
    """The command line of the examples, without defaults for what the bed always gives."""
    parser = argparse.ArgumentParser(description=description)
    for name in ("bootstrap", "input", "output", "checkpoint", "master"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--path", help="directory of files, for a program that writes them")
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--until-end", action="store_true")
    parser.add_argument("--engine", default=os.environ.get("ENGINE", "micro-batch"))
    return parser.parse_args()


def exclaim(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Append ``!`` to each value that is not null."""
    value = batch.column("value")
    shouted = pc.binary_join_element_wise(value, pa.scalar(b"!", value.type), b"")
    return batch.set_column(batch.schema.get_field_index("value"), "value", shouted)


def started(writer: DataStreamWriter, args: argparse.Namespace) -> StreamingQuery:
    """The drop-in query: to the end of what is there, or at the interval for ever."""
    if args.until_end:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{args.interval} seconds").start()
