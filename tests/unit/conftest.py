"""Fixtures that several unit tests share."""

from tests.kit.coordinator.coordinated_job import job
from tests.kit.coordinator.coordinated_service import broker, client, coordinator, service, source
from tests.kit.threads.watched_attempts import watched

__all__ = ["broker", "client", "coordinator", "job", "service", "source", "watched"]
