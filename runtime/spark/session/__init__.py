"""The Spark session: required settings, interrupts, hosts."""
