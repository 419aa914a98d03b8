"""Publishes staged files after the decision, and deletes those that no decision names."""
