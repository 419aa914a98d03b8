"""Python runs this first in each process that Spark starts for a region's source.

See `python_daemon`; `quick_python` puts this directory on the search path. The user's own
``sitecustomize`` runs first.
"""

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path


def _run_the_users_own() -> None:
    here = Path(__file__).resolve().parent
    others = [entry for entry in sys.path if Path(entry).resolve() != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _prepare() -> None:
    if "sluice.runtime.spark.fast_start.python_daemon" in sys.orig_argv:
        return  # it prepares itself; Python would warn of a program that is already loaded
    try:
        from sluice.runtime.spark.fast_start.python_daemon import prepare
    except ImportError:
        return  # a process of another interpreter has inherited the path
    prepare(sys.orig_argv)


_run_the_users_own()
_prepare()
