"""Partition commit: notifies readers that a partition is complete.

A partition is marked after its files are published and every live region of the sink has passed it.
`settings` holds the user's choices. `partition_time`, `partition_state` and `trigger` decide and
are pure. `open_partitions` keeps the state of a run. `policies` and `marker` carry out the marks.
"""

from sluice.connectors.hdfs.partition_commit.settings import PartitionCommit, PartitionMark, Webhook

__all__ = ["PartitionCommit", "PartitionMark", "Webhook"]
