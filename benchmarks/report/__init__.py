"""The goals, and the tables and the chart of `docs/research/benchmarks.md`."""
