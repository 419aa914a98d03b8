"""Copy a topic of a cloud cluster exactly once, logging in with the client file of that cloud.

``--config client.properties`` is the file that Confluent Cloud, Amazon MSK or Aiven gives to Kafka
clients; variables such as ``KAFKA_SASL_PASSWORD`` overrule it, so a secret needs no file.
"""

import argparse
import os
import sys

from pyspark.sql import SparkSession

from sluice import Job, KafkaSink, KafkaSource, StreamError, client_properties, fast_start

VARIABLES = ("KAFKA_BOOTSTRAP_", "KAFKA_SECURITY_", "KAFKA_SASL_", "KAFKA_SSL_")


def from_environment() -> dict[str, str]:
    """KAFKA_SASL_USERNAME=… is the option kafka.sasl.username."""
    given = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
    return {name.lower().replace("_", "."): value for name, value in given.items()}


def main() -> None:
    """Parse the command line and run the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", help="host:port of the Kafka cluster, if not in --config")
    parser.add_argument("--config", help="properties file of a Kafka client, readable by you alone")
    parser.add_argument("--input", required=True, help="topic to read, from its beginning")
    parser.add_argument("--output", required=True, help="topic to write")
    parser.add_argument("--checkpoint", required=True, help="checkpoint directory (URI or path)")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds of one epoch")
    parser.add_argument("--until-end", action="store_true", help="stop at the end of the input")
    parser.add_argument("--from", dest="origin", metavar="URI", help="savepoint to start from")
    parser.add_argument("--regions", type=int, metavar="N", help="parts of the input")
    parser.add_argument("--master", default="local[2]", help="Spark master")
    args = parser.parse_args()
    login = (client_properties(args.config) if args.config else {}) | from_environment()
    if args.bootstrap:
        login["kafka.bootstrap.servers"] = args.bootstrap
    builder = SparkSession.builder.master(args.master).appName("cloud_login")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config(map=fast_start(args.master)).getOrCreate()
    job = Job(
        "cloud-login",
        spark,
        checkpoint_dir=args.checkpoint,
        interval_s=args.interval,
        regions=args.regions,
        restore_from=args.origin,
    )
    source = KafkaSource(topics=[args.input], bounded=args.until_end, options=login)
    prefix = f"cloud-login-{args.output}"
    sink = KafkaSink(topic=args.output, transactional_id_prefix=prefix, options=login)
    job.source(source).sink(sink)
    job.run()


if __name__ == "__main__":
    try:
        main()
    except StreamError as error:  # the text has the error, its location and a remedy
        sys.exit(f"{type(error).__name__}: {error}")
