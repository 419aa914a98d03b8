"""``sluice.install(spark)``: registers the formats, and runs their service in this process."""

import atexit
import logging
from contextlib import ExitStack
from dataclasses import dataclass

from pyspark.sql import SparkSession

from sluice.connectors.hdfs.file_drop_in_format import FilesFormat, file_sink
from sluice.connectors.iceberg.iceberg_drop_in import IcebergFormat, iceberg_sink
from sluice.connectors.kafka import kafka_drop_in as kafka
from sluice.connectors.kafka.kafka_drop_in_batch import FrameRuns
from sluice.connectors.kafka.kafka_progress import lags_of
from sluice.runtime.service.drop_in_client import HANDLER_KEY, DropInClient
from sluice.runtime.service.listening.listener import Listener
from sluice.runtime.service.listening.service_settings import ServiceSettings, checked_port
from sluice.runtime.service.listening.service_tls import ServiceTls
from sluice.runtime.service.page.live_job import LiveJobs
from sluice.runtime.service.server import CoordinatorService
from sluice.runtime.spark.drop_in.drop_in_format import with_service
from sluice.runtime.spark.drop_in.drop_in_queries import DropInQueries
from sluice.runtime.spark.drop_in.frame_writes import FrameWrites
from sluice.runtime.spark.drop_in.query_metrics import QueryMetricsPort
from sluice.runtime.spark.drop_in.spark_readers import check_loads
from sluice.runtime.spark.drop_in.spark_writers import take_over_writers
from sluice.runtime.spark.session.spark_session import (
    active_session,
    driver_address,
    prepare,
    quick_python,
    require_running,
    warn_of_unbounded_rows,
)

__all__ = ["Installation", "install"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The parts that `install` started.

    If the process continues without Spark, close them before the session.
    """

    service: CoordinatorService
    metrics: QueryMetricsPort
    queries: DropInQueries
    frames: FrameWrites

    def close(self) -> None:
        """Stop all drop-in queries, their coordinators, the service and the metrics port. Safe to
        repeat."""
        with ExitStack() as stack:  # an error of one still closes the rest
            stack.callback(self.frames.close)
            stack.callback(self.service.stop)
            stack.callback(self.metrics.close)
            self.queries.close()


_installed: dict[str, Installation] = {}


def install(
    spark: SparkSession,
    *,
    host: str | None = None,
    bind_address: str | None = None,
    service_port: int | str | None = None,
    service_tls: bool | ServiceTls | None = None,
    metrics_port: int | None = None,
    metrics_host: str = "127.0.0.1",
) -> Installation:
    """Register ``sluice-kafka``, ``sluice-files`` and ``sluice-iceberg`` with a session, and start
    the service they need.

    From then on ``start()`` and ``save()`` of Spark's writers check these formats in this process.
    Once per session; all sessions of an application share one service and the first result, until
    that is closed. The service answers only requests with its token. The registered formats carry
    the token to Spark's processes.

    Args:
        spark: the session whose queries use the format.
        host: address of this process for the executors; see `sluice.Job`, also for the next three.
            One port serves all queries.
        bind_address: address that the service listens on.
        service_port: its port, or a range of ports.
        service_tls: its certificate, or whether it makes one.
        metrics_port: serves ``/metrics`` of all queries of the session there without a token; 0: a
            free port, which the log names; None: no such port, or the one of an earlier call.
        metrics_host: address that this port listens on.
    Raises:
        MissingRequirementError: ``service_port`` or ``metrics_port`` is in use.
        ConfigError: the session has been stopped, or has a setting that breaks exactly-once; or
            executors could not reach this process at ``host``.
    """
    require_running(spark)
    settings = ServiceSettings.of(
        spark.conf.getAll,
        default_host=driver_address(spark),
        host=host,
        bind_address=bind_address,
        port=service_port,
        tls=service_tls,
    )
    checked_port(metrics_port, host=metrics_host)
    application = spark.sparkContext.applicationId
    found = _installed.get(application)
    if found is None or found.queries.is_closed:
        prepare(spark)
        sinks = {
            kafka.FORMAT: kafka.kafka_sink,
            FilesFormat.format_name: file_sink,
            IcebergFormat.format_name: iceberg_sink,
        }
        service = CoordinatorService(listener=Listener.of(settings))
        queries = DropInQueries(spark, sinks, service)
        metrics = QueryMetricsPort(
            lags=lags_of, statuses=queries.statuses, pages=LiveJobs(queries.pages)
        )
        service.mount(HANDLER_KEY, queries)
        service.mount(FrameRuns.key, FrameRuns())
        service.start()
        installation = Installation(
            service=service, metrics=metrics, queries=queries, frames=FrameWrites(queries)
        )
        atexit.register(installation.close)
        _installed[application] = installation
    installation = _installed[application]
    warn_of_unbounded_rows(spark)
    if metrics_port is not None:
        installation.metrics.serve(metrics_host, metrics_port)
    installation.metrics.watch(spark)
    installation.queries.watch(spark)
    check_loads(kafka.check_source, format_name=kafka.FORMAT)
    checks = {
        kafka.FORMAT: kafka.check_kafka_write,
        FilesFormat.format_name: FilesFormat.check,
        IcebergFormat.format_name: IcebergFormat.check,
    }
    take_over_writers(checks, _installed_in)
    client = DropInClient(address=installation.service.coordinator_address)
    with active_session(spark), quick_python(spark, plans_once=True):
        for kind in (kafka.KafkaFormat, FilesFormat, IcebergFormat):
            spark.dataSource.register(with_service(kind, client))
    return installation


def _installed_in(spark: SparkSession) -> Installation | None:
    """In the session's application, while it is not closed."""
    found = _installed.get(spark.sparkContext.applicationId)
    return None if found is None or found.queries.is_closed else found
