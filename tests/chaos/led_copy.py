"""The copy with an elected leader: the second start of it is a standby."""

import logging
import os

from pyspark.sql import SparkSession

from sluice import KafkaSink, KafkaSource
from sluice.runtime.job.job import Job
from tests.chaos.command_line import exclaim, parsed


def main() -> None:
    """Parse the command line of the examples and run the job."""
    args = parsed(__doc__)
    logging.basicConfig(level=logging.INFO)
    spark = SparkSession.builder.master(args.master).appName("led-copy").getOrCreate()
    job = Job(
        "led-copy",
        spark,
        checkpoint_dir=args.checkpoint,
        interval_s=args.interval,
        engine=args.engine,
        ha=os.environ["HA"],
        ha_timeout_s=float(os.environ["HA_TIMEOUT_S"]),
    )
    job.source(
        KafkaSource(bootstrap_servers=args.bootstrap, topics=[args.input], bounded=args.until_end)
    ).map_batches(exclaim).sink(
        KafkaSink(
            bootstrap_servers=args.bootstrap,
            topic=args.output,
            transactional_id_prefix=f"led-{args.output}",
        )
    )
    job.run()


if __name__ == "__main__":
    main()
