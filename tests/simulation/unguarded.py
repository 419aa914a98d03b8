"""Values without the guard that makes them frozen: for workers, which make thousands a schedule.

A frozen dataclass sets each of its attributes through ``object.__setattr__``, which takes longer
than an assignment: 6 % of a schedule in all. The guard finds code that changes a value, and no seed
would show more of that than another: type checks, unit tests and the replay of a seed have it.
"""

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

__all__ = ["leave_out_guards"]

_OURS = ("runtime.", "connectors.", "tests.")


def leave_out_guards() -> None:
    """Of all frozen dataclasses that are loaded, for the rest of this process."""
    for cls in list(_frozen_classes()):
        cls.__init__ = _init_of(cls)
        del cls.__setattr__, cls.__delattr__


def _frozen_classes() -> Iterator[type[Any]]:
    for name, module in sys.modules.items():
        for cls in vars(module).values() if name.startswith(_OURS) else ():
            is_own = isinstance(cls, type) and cls.__module__ == name
            if is_own and dataclasses.is_dataclass(cls) and "__setattr__" in vars(cls):
                yield cls


def _init_of(cls: type[Any]) -> Any:
    """As `dataclasses.dataclass` makes it of the same fields without ``frozen``."""
    fields = [
        (
            each.name,
            object,
            dataclasses.field(
                default=each.default,
                default_factory=each.default_factory,
                init=each.init,
                kw_only=each.kw_only,
            ),
        )
        for each in dataclasses.fields(cls)
    ]
    after = getattr(cls, "__post_init__", None)
    namespace = {} if after is None else {"__post_init__": after}
    return vars(dataclasses.make_dataclass(cls.__name__, fields, namespace=namespace))["__init__"]
