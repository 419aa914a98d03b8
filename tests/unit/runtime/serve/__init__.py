"""Tests of `sluice serve`."""
