"""The runtime: Job, coordinator, checkpoints, regions and both engines; it imports no connector."""
