"""Jobs for tests of the page: facts of any number of regions, which tests change while it looks."""

from dataclasses import dataclass, field, replace
from math import sin
from typing import Any

from sluice.runtime.coordinator.region.job_time import TimeView
from sluice.runtime.coordinator.region.status_views import (
    AttemptView,
    CheckpointStatus,
    JobStatus,
    RegionStatusView,
    SuspendedView,
    TransactionView,
)
from sluice.runtime.model.checkpoint_record import OperatorNode
from sluice.runtime.service.job_view import (
    JobFacts,
    details_of,
    history_of,
    list_of,
    summary_of,
)

__all__ = ["NOW_MS", "ShownJobs", "history_with", "job_with", "region_with"]

NOW_MS = 1_790_000_000_000
_STAGES = ("read_s", "function_s", "write_s", "flush_s", "acknowledged_s")


def graph_with(parallelism: int) -> tuple[OperatorNode, ...]:
    """Read, map, and two sinks."""
    names = (("orders", "source", ()), ("clean", "map_batches", ("orders",)))
    names += (("payments", "sink", ("clean",)), ("archive", "sink", ("clean",)))
    return tuple(
        OperatorNode(
            operator_id=name, name=name, kind=kind, upstream=upstream, parallelism=parallelism
        )
        for name, kind, upstream in names
    )


def region_with(number: int, *, count: int, **changes: Any) -> RegionStatusView:
    """A healthy region; a few of many have a pressure."""
    name = "orders" if count == 1 else f"orders-{number}"
    pressure = "high" if number % 16 == 15 else "low" if number % 8 == 3 else "ok"
    usual = RegionStatusView(
        region=name,
        attempt_id=3,
        is_open=True,
        batch_id=41,
        splits={f"orders-{number}": 120_000 + number},
        begins_ms=None,
        ended=0,
        attempts=(),
        pending_ratio={"ok": 0.02, "low": 0.3, "high": 0.8}[pressure],
        pressure=pressure,
        rate_limit=None,
        dropped=0,
        late_rows=0,
        snapshot_age_s=0.4,
        lags={f"orders-{number}": 1_200 + number},
        lag_records=1_200 + number,
    )
    return replace(usual, **changes)


def suspended(why: str = "ValueError: this partition is sick") -> dict[str, Any]:
    """Changes that make a region a suspended one."""
    attempt = AttemptView(attempt_id=3, ended_ms=NOW_MS - 60_000, why=why, committed_after_s=0.4)
    return {
        "is_open": False,
        "ended": 4,
        "attempts": (attempt,),
        "pressure": None,
        "pending_ratio": None,
        "suspended": SuspendedView(since_ms=NOW_MS - 60_000, why=why),
    }


def job_with(
    regions: int = 3, *, name: str = "payments", uid: str = "6f1d2c3b-0000-4000-8000-000000000001"
) -> JobFacts:
    """A running job."""
    shown = tuple(region_with(number, count=regions) for number in range(regions))
    status = JobStatus(
        state="running",
        drop_limit=None,
        error="",
        last_decided=1_204,
        last_committed=1_203,
        pending=(
            CheckpointStatus(
                checkpoint_id=1_204,
                kind="checkpoint",
                state="decided",
                requested_by="interval",
                age_s=0.12,
                acknowledged=(),
            ),
        ),
        regions=shown,
        counters={"clean": {"rejected": 17}},
        function_records={"clean": {"read": 1_250_000, "skipped": 0, "dead_lettered": 3}},
        time=TimeView(
            watermark_ms=NOW_MS - 9_000,
            slowest="orders-1",
            slowest_region=shown[-1].region,
            slowest_ms=NOW_MS - 8_000,
            idle=("orders-2", "orders-5"),
        ),
        transactions=tuple(
            TransactionView(region=each.region, sink="payments", age_s=at + 0.9, timeout_s=60.0)
            for at, each in enumerate(shown[:8])
        ),
    )
    return JobFacts(
        job_uid=uid,
        name=name,
        state="running",
        checkpoint_uri="hdfs://namenode:8020/checkpoints/payments",
        started_ms=NOW_MS - 3_900_000,
        last_committed=1_203,
        host="driver-1.example",
        records_per_s=48_211.0,
        status=status,
        graph=graph_with(regions),
        settings={"checkpoint.interval_s": "1.0", "orders.sasl.password": "<redacted>"},
    )


def history_with(
    regions: int = 3, *, checkpoints: int = 40, now_ms: int = NOW_MS
) -> dict[str, list[Any]]:
    """The history of a job with a checkpoint each second, of which one gave up."""
    found: list[Any] = []
    for at in range(checkpoints):
        factor = 1.0 + (at * 7 % 5) / 10
        found.append(
            {
                "checkpoint_id": 1_203 - checkpoints + 1 + at,
                "ms": now_ms - (checkpoints - at) * 1_000,
                "kind": "checkpoint",
                "requested_by": "interval",
                "state": "aborted" if at == checkpoints // 2 else "marked",
                "records": 0 if at == checkpoints // 2 else int(48_000 * factor),
                "bytes": int(9_600_000 * factor),
                "acked_s": 0.3 * factor,
                "decided_s": 0.36 * factor,
                "committed_s": 0.42 * factor,
                "marked_s": 0.45 * factor,
                "reason": "" if at != checkpoints // 2 else "expired",
                "skipped": {},
                "regions": {
                    region_with(number, count=regions).region: dict(
                        zip(_STAGES, (0.14 * factor, 0.05, 0.06, 0.03, 0.3 * factor), strict=True)
                    )
                    for number in range(regions)
                },
            }
        )
    samples = [
        [
            now_ms - (119 - at) * 5_000,
            47_000 + round(2_500 * sin(at / 9) + 700 * sin(at * 1.7)),
            3_600 + round(700 * sin(at / 13) + 250 * sin(at * 2.3)),
        ]
        for at in range(120)
    ]
    return {
        "checkpoints": found,
        "attempts": [],
        "savepoints": [],
        "runs": [],
        "samples": samples,
    }


@dataclass
class ShownJobs:
    """A `JobPages` of facts that a test may replace at any time.

    Attributes:
        facts: by job uid.
        histories: by job uid.
        service, can_command: see `list_of`.
    """

    facts: dict[str, JobFacts] = field(default_factory=dict)
    histories: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    service: str = "job"
    can_command: bool = False
    now_ms: int = NOW_MS

    def show(self, facts: JobFacts, history: dict[str, list[Any]] | None = None) -> None:
        """Show this job, from now on."""
        self.facts[facts.job_uid] = facts
        if history is not None:
            self.histories[facts.job_uid] = history

    def jobs(self) -> dict[str, Any]:
        """See `JobPages`."""
        shown = [summary_of(each) for each in self.facts.values()]
        return list_of(
            shown,
            service=self.service,
            can_command=self.can_command,
            now_ms=lambda: self.now_ms,
        )

    def job(self, job_uid: str) -> dict[str, Any] | None:
        """See `JobPages`."""
        return details_of(self.facts[job_uid]) if job_uid in self.facts else None

    def history(self, job_uid: str, *, checkpoints: int | None = None) -> dict[str, Any] | None:
        """See `JobPages`."""
        if job_uid not in self.facts:
            return None
        return history_of(self.histories.get(job_uid, {}), checkpoints=checkpoints)
