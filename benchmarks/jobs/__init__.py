"""Whole jobs: throughput, latency, recovery, and what grows while a job runs."""
