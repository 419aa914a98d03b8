"""``make wheels``: builds the sdist and two wheels into ``dist/``, and checks each of them.

Zig's C compiler links against an old glibc and for another processor, so one machine builds both
wheels for all Linux distributions of the last ten years.
"""

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

__all__ = ["main"]

_ROOT = Path(__file__).parents[1]
_DIST = _ROOT / "dist"
_WORK = _ROOT / "build" / "wheels"
_TOOLS = _ROOT / "build" / "wheel-tools"
_PACKAGES = ("auditwheel", "build", "setuptools>=77", "twine", "ziglang>=0.13")
_GLIBC = "2.17"
_ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
_LIBRARY = "sluice/connectors/kafka/native/_hot_path.so"
_EXAMPLE = "sluice/connectors/kafka/tools/demo/program/kafka_to_kafka.py"


def main() -> None:
    """Build and check the sdist and the wheels, and print their names."""
    for directory in (_DIST, _WORK):
        shutil.rmtree(directory, ignore_errors=True)
    _make_environment(_TOOLS, *_PACKAGES)
    _run(_python(_TOOLS), "-m", "build", "--no-isolation", "--sdist", "--outdir", _DIST, _ROOT)
    [sdist] = _DIST.glob("*.tar.gz")
    wheels = {machine: _build_wheel(sdist, machine) for machine in _ELF_MACHINES}
    _run(_python(_TOOLS), "-m", "twine", "check", "--strict", sdist, *wheels.values())
    for machine, wheel in wheels.items():
        _check_contents(wheel, machine)
    _check_installed(wheels[platform.machine()], "native")
    _check_installed(sdist, "plain")
    for built in (sdist, *wheels.values()):
        sys.stdout.write(f"{built.relative_to(_ROOT)}\n")


def _build_wheel(sdist: Path, machine: str) -> Path:
    """A wheel from the sdist, so that nothing else of the checkout gets into it."""
    source = _WORK / machine
    with tarfile.open(sdist) as archive:
        archive.extractall(source, filter="data")
    [package] = source.iterdir()
    tag = f"manylinux_{_GLIBC.replace('.', '_')}_{machine}"
    compiler = f"{_python(_TOOLS)} -m ziglang cc -target {machine}-linux-gnu.{_GLIBC}"
    _run(
        *(_python(_TOOLS), "-m", "build", "--no-isolation", "--wheel", "--outdir", _DIST),
        *(f"--config-setting=--build-option=--plat-name={tag}", package),
        environment={"CC": compiler},
    )
    [wheel] = _DIST.glob(f"*-py3-none-{tag}.whl")
    return wheel


def _check_contents(wheel: Path, machine: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        library = archive.read(_LIBRARY)
        example = archive.read(_EXAMPLE)
    found = int.from_bytes(library[18:20], "little")  # e_machine of the ELF header
    _require(library[:4] == b"\x7fELF" and found == _ELF_MACHINES[machine], f"{wheel}: {found}")
    _require(example == (_ROOT / "examples" / "kafka_to_kafka.py").read_bytes(), _EXAMPLE)
    # The oldest glibc whose symbols satisfy the library.
    told = _run(_python(_TOOLS), "-m", "auditwheel", "show", wheel)
    tag = wheel.stem.rpartition("-")[2]
    _require(f'"{tag}"' in told.replace("\n", " "), told)


def _check_installed(package: Path, path: str) -> None:
    """Install it where there is no compiler and no extra, and run the check there."""
    environment = _WORK / f"with-{path}"
    _make_environment(environment, package, environment={"PATH": str(environment / "bin")})
    check = _ROOT / "tools" / "check_installed.py"
    _run(_python(environment), "-I", check, path, directory=environment)


def _make_environment(
    place: Path, *packages: str | Path, environment: Mapping[str, str] | None = None
) -> None:
    if not place.exists():
        venv.create(place, with_pip=True)
    quiet = ("--quiet", "--disable-pip-version-check")
    _run(_python(place), "-m", "pip", "install", *quiet, *packages, environment=environment)


def _python(environment: Path) -> Path:
    return environment / "bin" / "python"


def _run(
    *command: str | Path,
    environment: Mapping[str, str] | None = None,
    directory: Path = _ROOT,
) -> str:
    """The standard output of a command; its failure ends this program with all that it said."""
    done = subprocess.run(
        [str(each) for each in command],
        env={**os.environ, **(environment or {})},
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    _require(done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        sys.exit(f"make wheels: {otherwise}")


if __name__ == "__main__":
    main()
