"""How much a run of the tests tries: ``SLUICE_SHARE=0.25`` takes a quarter of all examples.

`make check` takes a part, `make test` and CI take everything.
"""

import os

_SHARE = float(os.environ.get("SLUICE_SHARE", "1"))


def examples(count: int) -> int:
    """So many examples of a property are tried in this run."""
    return max(5, round(count * _SHARE))


def stride(step: int) -> int:
    """The step of a range of cases in this run."""
    return round(step / _SHARE)
