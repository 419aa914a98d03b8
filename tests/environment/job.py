"""The job of the bed: a copy in two regions, into a topic, or into a topic and files; or a number
for each record of a key, by a function with state.

For each committed checkpoint it prints a line that begins with ``checkpoint=``.
"""

import argparse
import os

from pyspark.sql import SparkSession

from examples.regional import RegionLines
from sluice import HdfsSink, KafkaSink, KafkaSource
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.job.job import Job
from tests.chaos.command_line import exclaim
from tests.chaos.mortal_keyed import numbered

_COLUMNS = ["key", "value", "topic", "partition", "offset"]
_TOLERABLE = 1_000_000  # the bed continues, however often regions fail
_EPOCH_TIMEOUT_S = 60.0
_LOST_TIMEOUT_S = 8.0  # long pauses and partitions of the driver exceed it
_UNLED_S = 30.0  # most changes of the leader take less, and the longest outages take more


def main() -> None:
    """Parse the command line and run the job until a signal ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "input", "output", "checkpoint", "master", "engine"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--path", help="directory of files; none: write the topic only")
    parser.add_argument("--transaction-timeout", type=float, help="none: the brokers' maximum")
    parser.add_argument("--keyed", action="store_true", help="number the records of each key")
    parser.add_argument("--hosted", action="store_true", help="the coordinator is another process")
    args = parser.parse_args()
    spark = SparkSession.builder.master(args.master).appName("bed").getOrCreate()
    lines = RegionLines()
    job = Job(
        "bed",
        spark,
        checkpoint_dir=args.checkpoint,
        engine=args.engine,
        interval_s=0.5,
        timeout_s=_EPOCH_TIMEOUT_S,
        coordinator="process" if args.hosted else "driver",
        coordinator_lost_timeout_s=_UNLED_S if args.hosted else _LOST_TIMEOUT_S,
        regions=2,
        checkpoint_handler=RegionalCheckpointHandler(),
        tolerable_failures=_TOLERABLE,
        on_lost="fail" if args.keyed else "repair",
        host=os.environ["BED_HOST"],
        listeners=[lines],
    )
    source = KafkaSource(bootstrap_servers=args.bootstrap, topics=[args.input], name="in")
    sink = KafkaSink(
        bootstrap_servers=args.bootstrap,
        topic=args.output,
        transactional_id_prefix=f"bed-{args.output}",
        transaction_timeout_s=args.transaction_timeout,
    )
    records = job.source(source)
    copy = (numbered(records) if args.keyed else records.map_batches(exclaim)).sink(sink)
    if args.path:
        copy.sink(HdfsSink(args.path, columns=_COLUMNS))
    with lines:
        job.run()


if __name__ == "__main__":
    main()
