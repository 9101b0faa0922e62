"""Hatch build hook that compiles the CPU kernels; without a compiler, the package is built without them.

The build environment needs a C++17 compiler, jaxlib (for XLA's headers) and, on x86-64, onednn-devel-cpu-gomp
(oneDNN's headers and library). With build isolation, pip installs everything except the compiler. Wheels for
x86-64 contain oneDNN and have 15 MB; the package of oneDNN has 39 MB, and 164 MB when installed. On aarch64,
the kernels without x86 instructions and oneDNN are compiled.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path(__file__).parent / "src" / "meshflow" / "kernels"
# Sources that require x86-64, because they call oneDNN or consist of x86 instructions.
X86_SOURCES = (
    "amx",
    "amx_gradient",
    "attention",
    "blocked",
    "columns",
    "depthwise",
    "narrow",
    "onednn",
    "own",
    "panels",
    "tile_products",
    "winograd",
    "winograd_gradient",
)
# For each supported machine: whether it has oneDNN, and therefore all sources.
MACHINES = {"x86_64": True, "aarch64": False}
TARGET = FOLDER / "libmeshflow_onednn.so"
HEADERS, LIBRARY = "onednn-devel-cpu-gomp", "onednn-cpu-gomp"
ONEDNN = "libdnnl.so.3"
# Environment variable; with "1" wheels are built without the kernels, for any platform.
PURE = "MESHFLOW_PURE_WHEEL"


class CannotBuildError(Exception):
    """A requirement of the kernels is missing."""


def find_installed_file(package: str, name: str) -> Path:
    """Find a file of an installed package; pip's build environments are not at sys.prefix.

    Raises:
      CannotBuildError: If the package or the file is missing.
    """
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        raise CannotBuildError(f"the build environment has no {package}") from None
    found = (Path(file.locate()) for file in files if file.as_posix().endswith(f"/{name}"))
    path = next((path.resolve() for path in found if path.exists()), None)
    if path is None:
        raise CannotBuildError(f"{package} has no {name}")
    return path


def has_onednn() -> bool:
    """Check whether oneDNN exists for this machine.

    Raises:
      CannotBuildError: If the machine or the system is not supported.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in MACHINES:
        raise CannotBuildError(f"the kernels do not support {sys.platform} on {machine}")
    return MACHINES[machine]


def list_sources() -> list[Path]:
    """Return the sources that are compiled for this machine."""
    sources = sorted(FOLDER.glob("*.cc"))
    return [s for s in sources if has_onednn() or s.stem not in X86_SOURCES]


def hash_interface() -> str:
    """Return a hash of the declarations of the functions that Python calls without XLA."""
    pattern = re.compile(r'extern "C" ([^{;]*)')
    found = {
        " ".join(d.split()) for s in FOLDER.glob("*.cc") for d in pattern.findall(s.read_text())
    }
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()[:8]


def get_compile_command() -> list[str]:
    """Return the path of the C++ compiler and its options for every source file.

    Raises:
      CannotBuildError: If the platform is not supported, or a compiler or headers are missing.
    """
    if has_onednn():
        folder = find_installed_file(HEADERS, "include/oneapi/dnnl/dnnl.hpp").parents[2]
        machine_options = [f"-isystem{folder}"]
    else:
        machine_options = ["-DMESHFLOW_PORTABLE"]
    names = [os.environ.get("CXX"), "c++", "g++", "clang++"]
    found = next((n for n in names if n and shutil.which(n)), None)
    if found is None:
        raise CannotBuildError("no C++ compiler on the PATH")
    jaxlib = importlib.util.find_spec("jaxlib")
    if jaxlib is None or jaxlib.origin is None:
        raise CannotBuildError("the build environment has no jaxlib")
    headers = Path(jaxlib.origin).parent / "include"
    return [
        *(found, "-O3", "-std=c++17", "-fPIC", "-fopenmp-simd", "-pthread", "-w"),
        # Errors of math functions are never read; without errno, loops over square roots vectorize.
        "-fno-math-errno",
        *(*machine_options, f"-isystem{headers}", f"-DMESHFLOW_INTERFACE={hash_interface()}"),
        # The options of the user take precedence, as in other builds.
        *os.environ.get("CXXFLAGS", "").split(),
    ]


def run_compiler(command: Sequence[str]) -> None:
    """Run the compiler.

    Raises:
      CannotBuildError: If it fails; the message is the end of its output.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotBuildError(done.stderr.strip()[-2000:])


def build_kernels(target: Path = TARGET) -> str:
    """Compile the kernels and link them with oneDNN where it exists; return a message for the user.

    Args:
      target: Path of the library; by default where an editable install looks for it.

    Raises:
      CannotBuildError: If a requirement is missing or the compiler fails.
    """
    common, sources = get_compile_command(), list_sources()
    libraries = [str(find_installed_file(LIBRARY, ONEDNN))] if has_onednn() else []
    part = target.with_suffix(".part")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [f"{folder}/{source.stem}.o" for source in sources]
        commands = [
            [*common, "-c", str(source), "-o", made]
            for source, made in zip(sources, objects, strict=True)
        ]
        for _ in pool.map(run_compiler, commands):
            pass
        # Wheels contain oneDNN in the same folder.
        run_compiler(
            [*common, "-shared", *objects, *libraries, "-Wl,-rpath,$ORIGIN", "-o", str(part)]
        )
    os.replace(part, target)
    return f"CPU kernels compiled: {target.name}"


def read_ffi_version(path: Path) -> tuple[int, int]:
    """Read the version of XLA's foreign function interface from jaxlib's header or from compiled kernels.

    Args:
      path: The file.

    Raises:
      CannotBuildError: If the file does not contain a version.
    """
    content = path.read_bytes()
    found = re.search(rb"meshflow for XLA FFI (\d+)\.(\d+)", content)
    if found is not None:
        return int(found[1]), int(found[2])
    numbers = dict(re.findall(rb"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", content))
    if len(numbers) < 2:
        raise CannotBuildError(f"{path} has no version of XLA's foreign function interface")
    return int(numbers[b"MAJOR"]), int(numbers[b"MINOR"])


def is_up_to_date() -> bool:
    """Check whether the kernels of an editable install fit the sources, and the installed jaxlib runs them."""
    sources = [*FOLDER.glob("*.cc"), *FOLDER.glob("*.h"), Path(__file__)]
    jaxlib = importlib.util.find_spec("jaxlib")
    if not TARGET.exists() or jaxlib is None or jaxlib.origin is None:
        return False
    if TARGET.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        return False
    header = Path(jaxlib.origin).parent / "include/xla/ffi/api/c_api.h"
    try:
        return read_ffi_version(TARGET) <= read_ffi_version(header)
    except (CannotBuildError, OSError):
        return False


def build_for_wheel(folder: Path) -> dict[str, str]:
    """Compile the kernels for a wheel, and list the files that it needs for them.

    Args:
      folder: Folder to compile in, separate from the kernels of an editable install.

    Returns:
      Path in the wheel of the kernels and, on x86-64, oneDNN and its licences, by source path.

    Raises:
      CannotBuildError: See `build_kernels`.
    """
    build_kernels(folder / TARGET.name)
    kernels = {str(folder / TARGET.name): TARGET.name}
    files = (ONEDNN, "onednn/LICENSE", "onednn/THIRD-PARTY-PROGRAMS") if has_onednn() else ()
    kernels.update({str(find_installed_file(LIBRARY, name)): name for name in files})
    return {source: f"meshflow/kernels/{name}" for source, name in kernels.items()}


class KernelsHook(BuildHookInterface):
    """Hatch's build hook."""

    folder: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the kernels before the wheel is assembled, and tag it for the platform."""
        if self.target_name != "wheel":
            return
        editable = version == "editable"
        # scripts/wheel.sh also builds a wheel for platforms without kernels.
        if not editable and os.environ.get(PURE) == "1":
            return
        # Another environment may use the same file, with an older jaxlib.
        needs_build = not (editable and is_up_to_date())
        if editable and needs_build:
            # If the build fails, an outdated library must not be found.
            TARGET.unlink(missing_ok=True)
        try:
            if editable and needs_build:
                build_kernels()
            elif not editable:
                self.folder = tempfile.TemporaryDirectory()
                build_data["force_include"].update(build_for_wheel(Path(self.folder.name)))
        except CannotBuildError as error:
            self.app.display_warning(f"Built without CPU kernels; XLA compiles all ops: {error}")
            return
        self.app.display_info(f"CPU kernels compiled: {TARGET.name}")
        build_data["pure_python"] = False
        # The handlers do not use Python's API, so one wheel serves all versions of Python.
        system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{system}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete the temporary folder of the kernels after the wheel is written."""
        if self.folder is not None:
            self.folder.cleanup()
