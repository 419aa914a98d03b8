"""The programs under measurement, each run as a process of its own."""
