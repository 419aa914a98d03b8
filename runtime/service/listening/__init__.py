"""Settings, ports and certificate with which an HTTP service listens."""
