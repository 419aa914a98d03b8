"""Driver side of the source: discovers partitions and resolves offsets at each barrier."""
