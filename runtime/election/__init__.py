"""Elects the leader among the drivers or coordinators of one job."""
