"""The keyed state of a task: tables in memory or RocksDB, and their files in the checkpoint."""
