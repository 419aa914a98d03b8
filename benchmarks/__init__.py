"""Measures the goals of Sluice: ``make bench-parts``, or ``python -m benchmarks --help``.

``make bench`` compares Sluice with other systems.
"""
