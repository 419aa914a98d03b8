"""A real Kerberos realm for tests, and an HDFS in it."""
