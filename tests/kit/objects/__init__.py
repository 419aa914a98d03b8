"""A real S3 server for tests, and a proxy before it that does what networks and stores may do."""
