"""Build the libFuzzer programs of `native/` with AddressSanitizer and UndefinedBehaviorSanitizer.

Requires clang with its sanitizers (`apt-get install clang libclang-rt-19-dev`), and the packages that the kernels need.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from hatch_build import (  # noqa: E402
    LIBRARY,
    ONEDNN,
    find_installed_file,
    get_compile_command,
    list_sources,
)

SANITIZERS = "-fsanitize=fuzzer-no-link,address,undefined"
# Adjustments for clang: quickly, and with readable reports.
OPTIONS = ("-O1", "-g", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")
NATIVE_TARGETS = tuple(sorted(path.stem for path in (HERE / "native").glob("*.cc")))


def find_clang() -> str | None:
    """Return the newest clang++ on the PATH, or None."""
    names = ("clang++", *(f"clang++-{version}" for version in range(30, 13, -1)))
    return next((name for name in names if shutil.which(name)), None)


def find_gcc_file(name: str) -> Path:
    """Return the path of a file of GCC."""
    found = subprocess.run(
        ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    )
    return Path(found.stdout.strip())


def build_native_targets(folder: Path) -> dict[str, Path]:
    """Compile the kernels once, and link them with each target.

    Args:
      folder: Folder of the objects and the programs.

    Returns:
      The program of each target.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # oneDNN is linked with GCC's OpenMP.
    gomp = find_gcc_file("libgomp.so")
    os.environ["CXX"] = str(find_clang())
    command = [*get_compile_command(), *OPTIONS]
    kernel_sources = list_sources()
    sources = [*kernel_sources, *(HERE / "native" / f"{name}.cc" for name in NATIVE_TARGETS)]

    def compile_source(source: Path) -> Path:
        made = folder / f"{source.parent.name}-{source.stem}.o"
        headers = kernel_sources[0].parent.glob("*.h")
        newest = max(path.stat().st_mtime for path in (source, *headers))
        if not made.exists() or made.stat().st_mtime < newest:
            subprocess.run([*command, SANITIZERS, "-c", str(source), "-o", str(made)], check=True)
        return made

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_source, sources))
    library = find_installed_file(LIBRARY, ONEDNN)
    link = [*command, "-fsanitize=fuzzer,address,undefined", f"-Wl,-rpath,{library.parent}"]
    kernels = objects[: len(kernel_sources)]
    programs = {}
    for name, target in zip(NATIVE_TARGETS, objects[len(kernel_sources) :], strict=True):
        programs[name] = folder / name
        files = [*map(str, (*kernels, target, library, gomp)), "-ldl", "-o", str(programs[name])]
        subprocess.run([*link, *files], check=True)
    return programs


if __name__ == "__main__":
    print(*build_native_targets(Path(sys.argv[1])).values(), sep="\n")
