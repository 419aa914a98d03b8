"""An embedded ZooKeeper: an ensemble, and the command that runs it."""
