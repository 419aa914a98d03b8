"""Fixtures that several unit tests share."""

from tests.coordinated_job import job
from tests.coordinated_service import broker, client, coordinator, service, source
from tests.watched_lives import watched

__all__ = ["broker", "client", "coordinator", "job", "service", "source", "watched"]
