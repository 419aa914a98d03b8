"""A copy in regions, into a topic and into files, whose tasks die when they are asked to.

``DOOM`` names the directory in which deaths are asked for (`benchmarks.regions.mortal_sink`). Each line is
one checkpoint, as the example of regions prints them.
"""

import os
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.regions.mortal_sink import Doom, MortalSink
from examples.regional import RegionLines
from sluice import HdfsSink, KafkaSource
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.job.job import Job
from tests.chaos.command_line import exclaim, parsed

_TOLERABLE = 10_000  # more at once than may be skipped is one, and the test kills on


def main() -> None:
    """Parse the command line of the examples and run the job."""
    args = parsed(__doc__)
    spark = SparkSession.builder.master(args.master).appName("mortal regions").getOrCreate()
    lines = RegionLines()
    job = Job(
        "mortal-regions",
        spark,
        checkpoint_dir=args.checkpoint,
        engine=args.engine,
        interval_s=args.interval,
        regions=int(os.environ["REGIONS"]),
        checkpoint_handler=RegionalCheckpointHandler(),
        tolerable_failures=_TOLERABLE,
        listeners=[lines],
    )
    source = KafkaSource(
        bootstrap_servers=args.bootstrap, topics=[args.input], bounded=args.until_end, name="in"
    )
    sink = MortalSink(
        doom=Doom(Path(os.environ["DOOM"])),
        bootstrap_servers=args.bootstrap,
        topic=args.output,
        transactional_id_prefix=f"mortal-regions-{args.output}",
    )
    files = HdfsSink(args.path, columns=["key", "value", "topic", "partition", "offset"])
    job.source(source).map_batches(exclaim).sink(sink).sink(files)
    with lines:
        job.run()


if __name__ == "__main__":
    main()
