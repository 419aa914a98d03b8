"""Partition commit: telling readers that a partition is complete.

A partition is marked once every live region of the sink has passed it, after its files are
published. `settings` is what a user says; `partition_time`, `state` and `trigger` decide and are
pure; `ledger` keeps what a run knows; `policies` and `marker` do what was decided.
"""

from sluice.connectors.hdfs.partition_commit.settings import PartitionCommit, PartitionMark, Webhook

__all__ = ["PartitionCommit", "PartitionMark", "Webhook"]
