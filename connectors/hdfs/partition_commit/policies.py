"""How readers are told that a partition is complete. Thin; the marker's thread calls it."""

import json
from collections.abc import Callable, Mapping
from typing import TypeAlias

import urllib3

from connectors.hdfs.partition_commit.settings import PartitionCommit, PartitionMark, Webhook
from runtime.errors import UnreachableError
from runtime.storage.file_system import FileSystem

__all__ = ["RunPolicy", "policies_of", "post", "write_success_file"]

RunPolicy: TypeAlias = Callable[[PartitionMark], object]
"""Runs one policy; any error means that it has to be run again."""


def policies_of(
    commit: PartitionCommit, file_system: Callable[[], FileSystem]
) -> list[tuple[str, RunPolicy]]:
    """Name and function of each policy, in order.

    Args:
        file_system: gives the one rooted at the parent of the target.
    """
    return [_policy(commit, file_system, policy) for policy in commit.policies]


def _policy(
    commit: PartitionCommit, file_system: Callable[[], FileSystem], policy: object
) -> tuple[str, RunPolicy]:
    if isinstance(policy, Webhook):
        return f"webhook {policy.place}", lambda mark: post(policy, mark)
    if callable(policy):
        return getattr(policy, "__name__", type(policy).__name__), policy
    name = commit.success_file_name
    return name, lambda mark: write_success_file(file_system(), name, mark)


def write_success_file(fs: FileSystem, name: str, mark: PartitionMark) -> None:
    """An empty file in the partition; made anew, with a new time, where the partition was late."""
    directory = mark.target.rpartition("/")[2]
    path = f"{directory}/{mark.partition}/{name}"
    if mark.is_late or fs.length_bytes(path) is None:
        fs.replace(path, b"")


def post(webhook: Webhook, mark: PartitionMark) -> None:
    """Send the mark.

    Raises:
        UnreachableError: no answer, or another one than 200 to 299.
    """
    with urllib3.PoolManager(retries=False, timeout=webhook.timeout_s) as pool:
        try:
            answer = pool.request(
                "POST",
                webhook.url,
                body=json.dumps(_content(mark)).encode(),
                headers={
                    **webhook.headers,
                    "Content-Type": "application/json",
                    "Idempotency-Key": mark.key,
                },
                redirect=False,
            )
        except urllib3.exceptions.HTTPError as err:
            raise UnreachableError(
                "a webhook did not answer",
                {"webhook": webhook.place, "error": type(err).__name__},
                "It is asked again.",
            ) from None  # the cause names the whole address
    if not 200 <= answer.status < 300:
        raise UnreachableError(
            "a webhook refused a mark",
            {"webhook": webhook.place, "status": answer.status},
            "It is asked again.",
        )


def _content(mark: PartitionMark) -> Mapping[str, object]:
    return {
        "version": 1,
        "job": mark.job_name,
        "job_uid": mark.job_uid,
        "operator_id": mark.operator_id,
        "target": mark.target,
        "partition": mark.partition,
        "values": dict(mark.values),
        "sequence": mark.sequence,
        "late": mark.is_late,
        "key": mark.key,
    }
