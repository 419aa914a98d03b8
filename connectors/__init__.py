"""Sluice's connectors. ``connectors.install(spark)`` makes the formats known to a session."""

from typing import TYPE_CHECKING

from runtime.interpreter import use_this_interpreter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from connectors._install import Installation

__all__ = ["install"]

use_this_interpreter()


def install(spark: "SparkSession", *, host: str = "127.0.0.1") -> "Installation":
    """See `connectors._install.install`; imported when called, because workers import us too."""
    from connectors._install import install as install_formats

    return install_formats(spark, host=host)
