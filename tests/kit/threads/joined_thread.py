"""What a test does beside itself, and must end, and be sound, with it."""

from sluice.runtime.process.side_thread import SideThread


class JoinedThread(SideThread):
    """One that does not end in time is a failure, and so is what has ended it early."""

    def close(self) -> None:
        """See `SideThread.close`."""
        super().close()
        assert not self._thread.is_alive(), f"{self._thread.name} does not end"
        self._require_sound()
