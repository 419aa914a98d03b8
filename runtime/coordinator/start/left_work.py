"""Files and open work that ended attempts of earlier runs have left at the start of a run."""

import logging
from collections.abc import Callable, Sequence

from sluice.runtime.checkpoint.retained_states import KeptStates, left_by_attempts_before
from sluice.runtime.contracts import MetadataStore
from sluice.runtime.coordinator.committing.commit_steps import SharedCommitters, Steps
from sluice.runtime.errors import StreamError
from sluice.runtime.model.checkpoint_record import StateEntry

__all__ = ["abort_open_work", "sweep_state_files"]

log = logging.getLogger(__name__)


def sweep_state_files(
    store: MetadataStore, kept: KeptStates, attempt_id: int, *, session: str
) -> Steps[None]:
    """Delete files of keyed state that attempts before this id have left. No older coordinator
    can decide any more, so nothing will ever name them. A file that is uploaded later is swept
    by the next start.

    Args:
        kept: what the records in the checkpoint directory name.
        session: of this run.
    """
    if kept.has_damaged:
        return  # the damaged record may name any of them
    try:
        left = [
            path
            for path in store.state_files()
            if left_by_attempts_before(path, attempt_id, session=session)
            and not kept.is_named(path)
        ]
        if not left:
            return
        yield "before-state-sweep"
        store.delete_files(left)
        yield "after-state-sweep"
    except StreamError as err:  # nothing depends on it
        log.warning("files of earlier attempts were not deleted: error=%s", err)
        return
    log.info("files of earlier attempts deleted: attempt_id=%d files=%d", attempt_id, len(left))


def abort_open_work(
    left: Sequence[StateEntry], committers: SharedCommitters, *, timeout_s: Callable[[], float]
) -> None:
    """Abort open work before the first decision of this run: else it blocks readers
    (`abort-before-skip`). The sweep finds the rest by its attempt.

    Args:
        timeout_s: of one call; raises if no time is left.
    """
    for operator_id, positions in committers.positions(left).items():
        mine = [left[position] for position in positions]
        reports = committers.of(operator_id).abort(mine, timeout_s=timeout_s())
        for report in reports.values():
            log.info("aborted open work of an earlier run: outcome=%s", report.outcome.value)
