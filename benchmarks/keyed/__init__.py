"""Keyed state under measurement: races beside the peers, restores, failover, growing cost."""
