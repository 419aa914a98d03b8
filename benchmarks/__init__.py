"""What Sluice must reach, measured: ``make bench``, or ``python -m benchmarks --help``."""
