"""Closing what is of no use any more: one that fails is told, and hinders no other."""

import logging
from collections.abc import Callable

__all__ = ["close_logged"]

log = logging.getLogger(__name__)


def close_logged(close: Callable[[], object], what: str) -> None:
    """Call it; an error is logged with ``what``, and not raised: it would hide what ended the work,
    or leave what is closed behind it open."""
    try:
        close()
    except Exception:  # of a user's own sink it may be any
        log.exception("not closed: what=%s", what)
