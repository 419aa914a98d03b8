"""How far Spark has come with a batch that it runs once more, told while it runs."""

import logging
from collections.abc import Callable

from pyspark import SparkContext

from sluice.runtime.errors import StreamError
from sluice.runtime.process.side_thread import SideThread

__all__ = ["ReplayTold", "tasks_done"]

log = logging.getLogger(__name__)

_LOOK_S = 5.0
_GROUP = "spark.jobGroup.id"


def tasks_done(context: SparkContext) -> Callable[[], int]:
    """How many tasks of this thread's query have ended, whenever asked; to be made in the batch's
    callback, where Spark says whose jobs they are."""
    group, tracker = context.getLocalProperty(_GROUP), context.statusTracker()

    def count() -> int:
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        stages = {stage for job in jobs if job is not None for stage in job.stageIds}
        infos = [tracker.getStageInfo(stage) for stage in stages]
        return sum(info.numCompletedTasks for info in infos if info is not None)

    return count


class ReplayTold(SideThread):
    """Tells what has been done, each time that it has become another number, as long as the context
    lasts. Driver; a thread of its own. What cannot be told is none of the batch's business.

    Args:
        done: the number.
        tell: whoever waits for the batch.
        look_s: between two looks.
    """

    def __init__(
        self, done: Callable[[], int], tell: Callable[[int], None], *, look_s: float = _LOOK_S
    ) -> None:
        super().__init__("sluice-replay", stop_s=0.0)
        self._done = done
        self._tell = tell
        self._look_s = look_s

    @property
    def is_telling(self) -> bool:
        """Whether it goes on."""
        return self._thread.is_alive()

    def _work(self) -> None:
        told: int | None = None
        while True:
            try:
                done = self._done()
                if done != told:
                    self._tell(done)
                told = done
            except StreamError as err:  # the life is over
                log.debug("a replay is not told any more: error=%s", err)
                return
            except Exception:  # a session that is being stopped, for one
                log.debug("how far a replay has come is not known", exc_info=True)
            if self._stopping.wait(self._look_s):
                return
