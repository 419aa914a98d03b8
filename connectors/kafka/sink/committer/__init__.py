"""Ends transactions from the driver: outcomes, sweep, lease, and the wire requests behind them."""
