"""State in the records of checkpoints: files, keyed state, and the key groups of keys. Pure."""
