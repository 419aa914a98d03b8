"""Copy the records that have a value from one topic to another, exactly once, until stopped.

The environment has all settings, or arguments ``NAME=VALUE`` do, so that each service manager can
start the same program. Spark's own settings come from ``spark-submit`` or ``PYSPARK_SUBMIT_ARGS``.
"""

import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from sluice import Job, KafkaSink, KafkaSource, StreamError


def with_value(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Runs in the executors."""
    return batch.filter(pc.is_valid(batch["value"]))


def login() -> dict[str, str]:
    """Lines ``kafka.NAME=VALUE`` of a file that only the service manager lets this program read."""
    file = Path(os.environ.get("CREDENTIALS_DIRECTORY", "/run/secrets")) / "kafka-login"
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    return dict(line.partition("=")[::2] for line in lines if line.startswith("kafka."))


def main() -> None:
    """Run until SIGTERM, which ends the program with exit code 143."""
    os.environ.update(setting.partition("=")[::2] for setting in sys.argv[1:])
    servers, output = os.environ["KAFKA_SERVERS"], os.environ["OUTPUT"]
    options = login()
    job = Job(
        "orders",
        SparkSession.builder.appName("orders").getOrCreate(),
        checkpoint_dir=os.environ["CHECKPOINT"],
        host=os.environ.get("DRIVER_HOST"),
        engine=os.environ.get("ENGINE", "auto"),
        coordinator=os.environ.get("COORDINATOR", "driver"),
        task_memory_mib=int(os.environ.get("TASK_MEMORY_MIB", "256")),
    )
    source = KafkaSource(bootstrap_servers=servers, topics=[os.environ["INPUT"]], options=options)
    sink = KafkaSink(
        bootstrap_servers=servers,
        topic=output,
        transactional_id_prefix=f"orders-{output}",
        options=options,
    )
    job.source(source).map_batches(with_value).sink(sink)
    job.run()


if __name__ == "__main__":
    try:
        main()
    except StreamError as error:  # the text has the error, its location and a remedy
        sys.exit(f"{type(error).__name__}: {error}")
