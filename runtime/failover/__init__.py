"""How often and when a failed region restarts. Pure."""
