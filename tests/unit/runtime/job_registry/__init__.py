"""Tests of the job registry."""
