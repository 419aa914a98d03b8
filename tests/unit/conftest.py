"""Fixtures that several unit tests share."""

from tests.coordinated_job import job

__all__ = ["job"]
