"""Which extra of ``sluice-spark`` brings a package that is not installed."""

import contextlib
from collections.abc import Iterator

from sluice.runtime.errors import MissingRequirementError

__all__ = ["extras_named"]

_EXTRA_OF = {
    "attrs": "registry",
    "authlib": "registry",
    "cachetools": "registry",
    "certifi": "registry",
    "cryptography": "tls",
    "google": "registry",
    "grpc_tools": "registry",
    "httpx2": "registry",
    "jsonschema": "registry",
    "pandas": "spark",
    "psutil": "local",
    "py4j": "spark",
    "pyspark": "spark",
    "referencing": "registry",
    "rich": "cli",
    "rocksdict": "state",
    "testcontainers": "testing",
    "typer": "cli",
}


@contextlib.contextmanager
def extras_named() -> Iterator[None]:
    """Imports in this context name the extra to install if a package of an extra is missing.

    Raises:
        MissingRequirementError: an extra brings the missing package.
        ModuleNotFoundError: no extra brings it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = _EXTRA_OF.get(package)
        if extra is None:
            raise
        raise MissingRequirementError(
            "an optional package is not installed",
            {"package": package},
            f"Install sluice-spark[{extra}].",
        ) from error
