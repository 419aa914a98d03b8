"""Compares Sluice with other systems on one broker, in turn: see `benchmarks.peers.command`."""
