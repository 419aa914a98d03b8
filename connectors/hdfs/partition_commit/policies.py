"""Policies that notify readers of a complete partition. The marker's thread calls them."""

import json
from collections.abc import Callable, Mapping
from typing import TypeAlias

import urllib3

from sluice.connectors.hdfs.partition_commit.settings import PartitionCommit, PartitionMark, Webhook
from sluice.runtime.errors import StorageError, UnreachableError
from sluice.runtime.storage.file_system import FileSystem

__all__ = ["MarkRefusedError", "RunPolicy", "policies_of", "post", "write_success_file"]

RunPolicy: TypeAlias = Callable[[PartitionMark], object]
"""Runs one policy. After any error it must run again; after all but `MarkRefusedError` it is
unknown whether readers were notified."""

_PERHAPS_TAKEN = frozenset({408, 409, 425, 429})  # may still have been accepted


class MarkRefusedError(UnreachableError):
    """A policy could not run, and no reader was notified."""


def policies_of(
    commit: PartitionCommit, file_system: Callable[[], FileSystem]
) -> list[tuple[str, RunPolicy]]:
    """Name and function of each policy, in order.

    Args:
        file_system: returns the file system rooted at the parent of the target.
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
    """Write an empty file into the partition; if the partition was late, again, with a new time.

    Raises:
        MarkRefusedError: the file is absent. If a lost request creates it later, the next rows find
            it.
        StorageError: it is unknown whether the file was written.
    """
    directory = mark.target.rpartition("/")[2]
    path = f"{directory}/{mark.partition}/{name}"
    if not mark.is_late and fs.length_bytes(path) is not None:
        return
    try:
        fs.replace(path, b"")
    except StorageError as err:
        if mark.is_late or fs.length_bytes(path) is not None:
            raise
        raise MarkRefusedError(
            "a success file was not written",
            {"path": path, "error": err},
            "Check that the target may be written; the job tries again.",
        ) from err


def post(webhook: Webhook, mark: PartitionMark) -> None:
    """Send the mark.

    Raises:
        MarkRefusedError: no server listens, or the answer refuses for certain.
        UnreachableError: no answer, or one outside 200 to 299.
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
            was_sent = not isinstance(
                err,
                urllib3.exceptions.NewConnectionError | urllib3.exceptions.ConnectTimeoutError,
            )
            raise (UnreachableError if was_sent else MarkRefusedError)(
                "a webhook did not answer",
                {"webhook": webhook.place, "error": type(err).__name__},
                "It is asked again.",
            ) from None  # the cause names the whole address
    if not 200 <= answer.status < 300:
        is_no = 400 <= answer.status < 500 and answer.status not in _PERHAPS_TAKEN
        raise (MarkRefusedError if is_no else UnreachableError)(
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
