"""Ours and the peers over one broker, one after the other: see `benchmarks.peers.command`."""
