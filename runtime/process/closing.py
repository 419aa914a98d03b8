"""Closes unused objects; an error of one is logged, and does not prevent the next."""

import logging
from collections.abc import Callable

__all__ = ["close_logged"]

log = logging.getLogger(__name__)


def close_logged(close: Callable[[], object], what: str) -> None:
    """Call it; an error is logged with ``what`` and not raised. It would hide the error that ended
    the work, or leave later objects open."""
    try:
        close()
    except Exception:  # the sink of a user may raise any error
        log.exception("object was not closed: what=%s", what)
