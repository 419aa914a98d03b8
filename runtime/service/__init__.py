"""The driver's HTTP service and its clients."""
