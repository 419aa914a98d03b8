"""The history of a job: one bounded file in its checkpoint directory, for people and pages."""
