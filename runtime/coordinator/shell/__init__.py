"""The shell around the core: threads, I/O, commands."""
