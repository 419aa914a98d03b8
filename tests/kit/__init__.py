"""Helpers of the tests: fakes, fixtures, servers and harnesses."""
