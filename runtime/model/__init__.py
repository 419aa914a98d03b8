"""Values that all packages share: offsets, ranges, options, time."""
