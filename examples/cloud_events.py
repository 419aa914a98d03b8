"""Price orders that arrive as CloudEvents, exactly once; other events go to ``--others``.

Reads both content modes: binary, with ``ce_`` headers, and structured. Writes structured events.
"""

import argparse
import base64
import json
import sys
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from sluice import DeadLetters, Job, KafkaSink, KafkaSource, StreamError, fast_start


def read_event(row: dict[str, Any]) -> dict[str, Any]:
    """The event as in CloudEvents' JSON format; binary data is in base64."""
    headers = {each["key"]: (each["value"] or b"").decode() for each in row["headers"] or ()}
    content, value = headers.get("content-type", ""), row["value"]
    event = {name[3:]: text for name, text in headers.items() if name[:3] == "ce_"}
    if content.startswith("application/cloudevents+json"):
        event = json.loads(value)
    elif value is not None:
        encoded = {"data_base64": base64.b64encode(value).decode()}
        data = {"data": json.loads(value)} if "json" in content else encoded
        event |= {"datacontenttype": content, **data}
    if event.get("specversion") != "1.0" or not all(event.get(n) for n in ("id", "source", "type")):
        raise ValueError("a record is no CloudEvent of version 1.0")
    return event


def priced(event: dict[str, Any]) -> dict[str, Any]:
    """A new event. Its id follows from the order's, so a replay writes the same one."""
    data = event["data"] | {"total": event["data"]["price"] * event["data"]["quantity"]}
    return event | {"id": f"{event['id']}-priced", "type": "shop.order.priced", "data": data}


def route(batch: pa.RecordBatch, *, output: str, others: str) -> pa.RecordBatch:
    """Each event by its type. The sink writes a row to the topic in its column."""
    events = [read_event(row) for row in batch.to_pylist()]
    orders = [event["type"] == "shop.order.created" for event in events]
    made = [priced(e) if is_order else e for e, is_order in zip(events, orders, strict=True)]
    values = pa.array([json.dumps(event).encode() for event in made], pa.binary())
    topics = pa.array([output if is_order else others for is_order in orders], pa.string())
    headers = [[{"key": "content-type", "value": b"application/cloudevents+json"}]] * len(made)
    columns = [batch["key"], values, topics, pa.array(headers, batch["headers"].type)]
    return pa.RecordBatch.from_arrays(columns, ["key", "value", "topic", "headers"])


def main() -> None:
    """Parse the command line and run the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="host:port of the Kafka cluster")
    parser.add_argument("--input", required=True, help="topic to read, from its beginning")
    parser.add_argument("--output", required=True, help="topic for priced orders")
    parser.add_argument("--others", required=True, help="topic for other events")
    parser.add_argument("--dead", required=True, help="topic for records that are no CloudEvents")
    parser.add_argument("--checkpoint", required=True, help="checkpoint directory (URI or path)")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds of one epoch")
    parser.add_argument("--until-end", action="store_true", help="stop at the end of the input")
    parser.add_argument("--from", dest="origin", metavar="URI", help="savepoint to start from")
    parser.add_argument("--regions", type=int, metavar="N", help="parts of the input")
    parser.add_argument("--master", default="local[2]", help="Spark master")
    args = parser.parse_args()
    builder = SparkSession.builder.master(args.master).appName("cloud_events")
    spark = builder.config(map=fast_start(args.master)).getOrCreate()
    job = Job(
        "cloud-events",
        spark,
        checkpoint_dir=args.checkpoint,
        interval_s=args.interval,
        regions=args.regions,
        restore_from=args.origin,
    )
    at, prefix = args.bootstrap, f"cloud-events-{args.output}"
    source = KafkaSource(bootstrap_servers=at, topics=[args.input], bounded=args.until_end)
    by_type = partial(route, output=args.output, others=args.others)
    events = job.source(source).map_batches(by_type, on_error=DeadLetters(topic=args.dead))
    events.sink(KafkaSink(bootstrap_servers=at, transactional_id_prefix=prefix))
    job.run()


if __name__ == "__main__":
    try:
        main()
    except StreamError as error:  # the text has the error, its location and a remedy
        sys.exit(f"{type(error).__name__}: {error}")
