"""File sink for Jobs: Parquet, ORC, Avro, JSON lines and CSV on HDFS or a local file system."""

from connectors.hdfs.partition_commit import PartitionCommit, PartitionMark, Webhook
from connectors.hdfs.rolling import Roll
from connectors.hdfs.sink import HdfsSink

__all__ = ["HdfsSink", "PartitionCommit", "PartitionMark", "Roll", "Webhook"]
