"""The copy of the examples over a cluster that asks for a password; options come as JSON."""

import json
import os

from pyspark.sql import SparkSession

from sluice import KafkaSink, KafkaSource
from sluice.runtime.job.job import Job
from tests.chaos.command_line import exclaim, parsed


def main() -> None:
    """Parse the command line of the examples and run the job."""
    args = parsed(__doc__)
    settings = json.loads(os.environ["SECURE_COPY"])
    spark = SparkSession.builder.master(args.master).appName("secure copy").getOrCreate()
    job = Job("secure-copy", spark, checkpoint_dir=args.checkpoint, interval_s=args.interval)
    source = KafkaSource(
        bootstrap_servers=settings["bootstrap"],
        topics=[args.input],
        bounded=args.until_end,
        options=settings["options"],
    )
    sink = KafkaSink(
        bootstrap_servers=settings["bootstrap"],
        topic=args.output,
        transactional_id_prefix=f"secure-copy-{args.output}",
        options=settings["options"],
    )
    job.source(source).map_batches(exclaim).sink(sink)
    job.run()


if __name__ == "__main__":
    main()
