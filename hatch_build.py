"""Compiles the CPU kernels when the package is built; without a compiler it is built without them.

Needs a C++17 compiler, jaxlib (for XLA's headers) and onednn-devel-cpu-gomp (oneDNN's headers, with its
library) in the environment that builds; pip brings all but the compiler where it builds apart.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path(__file__).parent / "src" / "meshflow" / "kernels"
SOURCES = sorted(FOLDER.glob("*.cc"))
TARGET = FOLDER / "libmeshflow_onednn.so"


class CannotBuildError(Exception):
    """What is missing for the kernels."""


def command(output: Path) -> list[str]:
    """The compiler's command line.

    Raises:
      CannotBuildError: saying what is missing.
    """
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        raise CannotBuildError(f"not made for {sys.platform} on {platform.machine()}")
    names = [os.environ.get("CXX"), "c++", "g++", "clang++"]
    compiler = next((n for n in names if n and shutil.which(n)), None)
    if compiler is None:
        raise CannotBuildError("no C++ compiler on the PATH")
    prefix = Path(sys.prefix)
    if not (prefix / "include/oneapi/dnnl/dnnl.hpp").exists():
        raise CannotBuildError(
            f"no oneDNN headers in {prefix}/include (package onednn-devel-cpu-gomp)"
        )
    if not (prefix / "lib/libdnnl.so.3").exists():
        raise CannotBuildError(f"no oneDNN in {prefix}/lib (package onednn-cpu-gomp)")
    jaxlib = importlib.util.find_spec("jaxlib")
    if jaxlib is None or jaxlib.origin is None:
        raise CannotBuildError("no jaxlib in the environment that builds")
    headers = Path(jaxlib.origin).parent / "include"
    return [
        *(compiler, "-O3", "-std=c++17", "-fPIC", "-shared", "-fopenmp", "-w"),
        *(f"-isystem{prefix}/include", f"-isystem{headers}"),
        *(*map(str, SOURCES), "-o", str(output)),
        *(f"-L{prefix}/lib", "-l:libdnnl.so.3"),
    ]


def build() -> str:
    """Compiles; returns what to tell the user.

    Raises:
      CannotBuildError: saying what is missing or what the compiler said.
    """
    part = TARGET.with_suffix(".part")
    done = subprocess.run(command(part), capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotBuildError(done.stderr.strip()[-2000:])
    os.replace(part, TARGET)
    return f"CPU kernels compiled: {TARGET.name}"


class KernelsHook(BuildHookInterface):
    """Hatch's build hook."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Runs before the wheel is put together."""
        if self.target_name != "wheel":
            return
        if version == "editable":
            # One that does not fit the source any more would still be found there.
            TARGET.unlink(missing_ok=True)
        try:
            self.app.display_info(build())
        except CannotBuildError as error:
            self.app.display_warning(f"Built without CPU kernels, XLA's are used: {error}")
            return
        build_data["artifacts"].append(f"src/meshflow/kernels/{TARGET.name}")
        build_data["pure_python"] = False
        # The handlers know nothing of Python: one wheel serves all its versions.
        system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{system}"
