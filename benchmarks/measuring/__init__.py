"""Tools of all benchmarks: a broker, topics, feeds, samples of processor time, figures."""
