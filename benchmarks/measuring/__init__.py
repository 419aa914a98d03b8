"""What the benchmarks measure with: a broker, topics, feeds, samples of processor time, figures."""
