"""Builds the native library and tags the wheels; all other settings are in pyproject.toml.

`_hot_path.so` is a plain C library, which `connectors/kafka/native/library.py` loads by ctypes. It
uses nothing of Python, so one wheel for each kind of machine serves every version of Python.
"""

import os
import shlex
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

# `-ldl`: until version 2.34 of glibc, `dlopen` was in a library of its own.
_FLAGS = ("-O2", "-fvisibility=hidden", "-shared", "-fPIC")
_LIBRARIES = ("-ldl",)


class BuildLibrary(build_ext):
    """Compiles with ``CC``, or ``cc``; a failure is a warning, as the plain path needs no library.

    setuptools would name the file after this Python, and compile with this Python's flags.
    """

    def get_ext_filename(self, fullname: str) -> str:
        return f"{fullname.replace('.', os.sep)}.so"

    def build_extension(self, ext: Extension) -> None:
        library = Path(self.get_ext_fullpath(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        compiler = shlex.split(os.environ.get("CC") or "cc")
        command = [*compiler, *_FLAGS, "-o", str(library), *ext.sources, *_LIBRARIES]
        try:
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise CompileError(str(error)) from error  # setuptools warns, if it is optional


class TagWheel(bdist_wheel):
    """Names the platform only: any Python 3 can load the library."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            "sluice.connectors.kafka.native._hot_path",
            sources=["sluice/connectors/kafka/native/_hot_path.c"],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": TagWheel},
)
