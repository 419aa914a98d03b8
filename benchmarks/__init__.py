"""What Sluice must reach, measured: ``make bench-parts``, or ``python -m benchmarks --help``.

``make bench`` sets it beside the peers.
"""
