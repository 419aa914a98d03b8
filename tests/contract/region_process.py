"""A process that hosts a region whose lives do nothing; prints where it answers."""

import json
import sys
import threading

from sluice.runtime.contracts import RegionAttempt, RegionRegistration
from sluice.runtime.service.hosted_region import HostedRegion
from sluice.runtime.service.remote_region import RegionDoor, region_key
from sluice.runtime.service.server import CoordinatorService


class IdleLife:
    """Runs until it is stopped."""

    def __init__(self, attempt: RegionAttempt) -> None:
        self._attempt = attempt
        self._stopped = threading.Event()

    @property
    def is_active(self) -> bool:
        return not self._stopped.is_set()

    def registration(self) -> RegionRegistration:
        return RegionRegistration(region=self._attempt.region, attempt_id=self._attempt.attempt_id)

    def prepare_stop(self) -> None:
        pass

    def stop(self) -> None:
        self._stopped.set()

    def require_writable(self) -> None:
        pass

    def failure(self) -> BaseException | None:
        return None


def main() -> None:
    """Serve until standard input ends."""
    service = CoordinatorService()
    service.mount(region_key("main"), RegionDoor(HostedRegion("main", IdleLife)))
    with service:
        address = service.coordinator_address
        told = {
            "address": address.address,
            "token": address.token,
            "leader_session_id": address.leader_session_id,
            "job_uid": address.job_uid,
        }
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
