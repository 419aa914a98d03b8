"""A copy in regions where everything regional happens all the time: regions fail, are late, and
exchange splits with each checkpoint.

``DOOM`` names the directory in which deaths are asked for (`benchmarks.regions.mortal_sink`); a transaction
timeout and ``on_lost`` may be chosen, as in `tests.chaos.mortal_copy`.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.regions.mortal_sink import Doom, MortalSink
from sluice import KafkaSource
from sluice.runtime.coordinator.policy.assignment import Move
from sluice.runtime.coordinator.policy.balance import Choice, RegionLoad
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.job.job import Job
from tests.chaos.command_line import exclaim, parsed

_REGIONS = 4
_LATE_S = 0.3
_SLOW_PER_S = 40.0  # a task's: faster than the feeder, and late with what has come meanwhile
_TOLERABLE = 10_000
_MOST_LEFT_OUT = 0.75  # on a busy machine two are late, beside one that has failed


class Restless:
    """The region with the most splits gives one to that with the fewest, or to any other."""

    def choose(self, offered: Mapping[str, RegionLoad], overloaded: Mapping[str, int]) -> Choice:
        """See `sluice.runtime.coordinator.policy.balance.Balancer.choose`."""
        by_size = sorted(offered, key=lambda name: (len(offered[name].records), name))
        source_region, target_region = by_size[-1], by_size[0]
        if len(offered[source_region].records) < 2:
            return Choice()
        return Choice(
            moves=(
                Move(
                    split=min(offered[source_region].records),
                    source_region=source_region,
                    target_region=target_region,
                ),
            )
        )


def main() -> None:
    """Parse the command line of the examples and run the job."""
    args = parsed(__doc__)
    spark = SparkSession.builder.master(args.master).appName("restless regions").getOrCreate()
    job = Job(
        "restless-regions",
        spark,
        checkpoint_dir=args.checkpoint,
        engine=args.engine,
        interval_s=args.interval,
        regions=_REGIONS,
        checkpoint_handler=RegionalCheckpointHandler(
            region_timeout_s=_LATE_S, max_failed_ratio=_MOST_LEFT_OUT
        ),
        tolerable_failures=_TOLERABLE,
        load_balancer=Restless(),
        on_lost=os.environ.get("ON_LOST", "fail"),
    )
    source = KafkaSource(
        bootstrap_servers=args.bootstrap, topics=[args.input], bounded=args.until_end, name="in"
    )
    timeout_s = os.environ.get("TRANSACTION_TIMEOUT_S")
    sink = MortalSink(
        doom=Doom(Path(os.environ["DOOM"])),
        records_per_s={"in-1": _SLOW_PER_S},
        bootstrap_servers=args.bootstrap,
        topic=args.output,
        transactional_id_prefix=f"restless-regions-{args.output}",
        transaction_timeout_s=None if timeout_s is None else float(timeout_s),
    )
    job.source(source).map_batches(exclaim).sink(sink)
    job.run()


if __name__ == "__main__":
    main()
