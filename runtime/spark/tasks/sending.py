"""What the user's functions are sent to Spark's workers as, and what cannot be sent."""

from pyspark import cloudpickle

from sluice.runtime.errors import ConfigError

__all__ = ["as_sent"]


def as_sent(work: object, *, region: str) -> bytes:
    """What a task runs, as bytes. Spark sends along the broadcast variables that this thread has
    pickled.

    Raises:
        ConfigError: a function holds what cannot leave this process: trying again is in vain.
    """
    try:
        sent: bytes = cloudpickle.dumps(work)  # type: ignore[no-untyped-call]  # PySpark's
    except Exception as err:  # what an object raises there is its own
        raise ConfigError(
            "a function cannot be sent to Spark's workers",
            {"region": region, "error": f"{type(err).__name__}: {err}"},
            "It uses something that lives in this process alone, such as a session, a client, a "
            "lock or an open file: make that inside the function, when it is first called.",
        ) from err
    return sent
