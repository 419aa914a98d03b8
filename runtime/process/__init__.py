"""One process: clocks, threads, garbage collection, interpreter."""
