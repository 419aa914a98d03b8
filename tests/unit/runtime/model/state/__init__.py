"""Tests of values about state."""
