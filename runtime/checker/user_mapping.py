"""The function of a user's that says what each input record must become."""

import importlib
import sys
from collections.abc import Callable, Iterable

from runtime.checker.record import Record
from runtime.errors import ConfigError

__all__ = ["load_mapping"]


def load_mapping(name: str) -> Callable[[Record], Iterable[Record]]:
    """The function that ``module:function`` names; it may return one record, several or None.

    Raises:
        ConfigError: there is no such function.
    """
    module_name, _, function_name = name.partition(":")
    try:
        if "" not in sys.path:
            sys.path.insert(0, "")  # a program of the user's lies where he is
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as err:
        raise ConfigError(
            "the mapping cannot be loaded",
            {"map": name, "reason": err},
            "Write MODULE:FUNCTION, of a module that can be imported from here.",
        ) from err

    def mapping(record: Record) -> Iterable[Record]:
        result = function(record)
        if result is None:
            return ()
        results: Iterable[Record] = (result,) if isinstance(result, Record) else result
        return results

    return mapping
