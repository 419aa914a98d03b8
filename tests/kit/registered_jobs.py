"""Registrations of jobs for tests."""

from typing import Any

from sluice.runtime.job_registry.registration import Registration

__all__ = ["a_registration"]


def a_registration(job_uid: str = "job-1", **changes: Any) -> Registration:
    """Of a running job that no service answers for."""
    facts: dict[str, Any] = {
        "job_uid": job_uid,
        "name": "orders",
        "checkpoint_uri": "file:///nowhere/orders",
        "address": "http://127.0.0.1:1",
        "host": "driver-1",
        "run_attempt": 1,
        "started_ms": 1_000,
        "renewed_ms": 1_000,
    }
    return Registration(**(facts | changes))
