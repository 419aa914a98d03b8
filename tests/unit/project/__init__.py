"""Tests of the project itself: its pages, rules, mutants and test environment."""
