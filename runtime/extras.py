"""Which extra of ``sluice-spark`` brings a package that is not installed."""

import contextlib
from collections.abc import Iterator

from sluice.runtime.errors import MissingRequirementError

__all__ = ["extras_named"]

_EXTRA_OF = {
    "attrs": "registry",
    "authlib": "registry",
    "aws_msk_iam_sasl_signer": "aws",
    "azure": "objects",
    "botocore": "objects",
    "cachetools": "registry",
    "certifi": "registry",
    "cryptography": "keystores",
    "google": "registry",
    "google.auth": "objects",
    "grpc_tools": "registry",
    "httpx2": "registry",
    "jsonschema": "registry",
    "kazoo": "ha",
    "obstore": "objects",
    "pandas": "spark",
    "psutil": "local",
    "py4j": "spark",
    "pyiceberg": "iceberg",
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
        MissingRequirementError: an extra brings the missing package, or PySpark is too old.
        ModuleNotFoundError: no extra brings it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package, _, module = (error.name or "").partition(".")
        if package == "pyspark" and module not in ("", "sql"):
            raise MissingRequirementError(
                "the installed PySpark is too old for Sluice",
                {"missing": error.name},
                "Install PySpark 4.2 or newer.",
            ) from error
        extra = _EXTRA_OF.get(error.name or "", _EXTRA_OF.get(package))
        if extra is None:
            raise
        raise MissingRequirementError(
            "an optional package is not installed",
            {"package": package},
            f"Install sluice-spark[{extra}].",
        ) from error
