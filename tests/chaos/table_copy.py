"""The copy of a topic into another topic, a table and, with ``--path``, files: with one decision.

The variable ``TABLE_CATALOG`` has properties of the table's catalog as JSON.
"""

import json
import os

from pyspark.sql import SparkSession

from sluice import HdfsSink, IcebergSink, KafkaSink, KafkaSource
from sluice.runtime.job.job import Job
from tests.chaos.command_line import exclaim, parsed
from tests.kit.iceberg.iceberg_bed import TABLE

CATALOG = "TABLE_CATALOG"


def main() -> None:
    """Parse the command line of the examples and run the job."""
    args = parsed(__doc__)
    spark = SparkSession.builder.master(args.master).appName("table copy").getOrCreate()
    job = Job(
        "table-copy",
        spark,
        checkpoint_dir=args.checkpoint,
        interval_s=args.interval,
        engine=args.engine,
        regions=1,
    )
    source = KafkaSource(
        bootstrap_servers=args.bootstrap, topics=[args.input], bounded=args.until_end
    )
    topic = KafkaSink(
        bootstrap_servers=args.bootstrap,
        topic=args.output,
        transactional_id_prefix=f"table-copy-{args.output}",
    )
    table = IcebergSink(catalog=json.loads(os.environ[CATALOG]), table=TABLE)
    written = job.source(source).map_batches(exclaim).sink(topic).sink(table)
    if args.path:
        written.sink(HdfsSink(args.path, columns=("key", "value", "topic", "partition", "offset")))
    job.run()


if __name__ == "__main__":
    main()
