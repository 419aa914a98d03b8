"""Ends transactions from the driver: outcomes, sweep, lease, and their wire requests."""
