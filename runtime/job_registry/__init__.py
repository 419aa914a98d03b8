"""The directory in which jobs register, for `sluice serve`."""
