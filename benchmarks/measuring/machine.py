"""The machine and the software versions of a measurement."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

__all__ = ["describe"]


def describe() -> list[tuple[str, str]]:
    """Names and values of hardware, system and versions."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    return [
        ("processor", _processor()),
        ("cores", f"{os.cpu_count()}, shared with the broker"),
        ("memory", f"{memory_gib:.0f} GiB"),
        ("system", f"{platform.system()} {platform.release()}"),
        ("python", platform.python_version()),
        ("java", (java.stderr.splitlines() or ["?"])[0]),
        *((name, version(name)) for name in ("pyspark", "confluent-kafka", "pyarrow")),
        ("load before", f"{os.getloadavg()[0]:.2f}"),
    ]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
