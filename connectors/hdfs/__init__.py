"""File sink: Parquet, ORC, Avro, JSON lines and CSV on HDFS or a local file system."""
