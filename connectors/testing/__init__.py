"""The kit for tests of users: a pytest plugin with servers and Spark; kills; assertions."""
