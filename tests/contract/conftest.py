"""What several contract suites use."""

from tests.coordinated_job import job

__all__ = ["job"]
