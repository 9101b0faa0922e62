"""Fuzz every parser with coverage guidance, and print executions, coverage and findings of each target.

`python fuzz/run.py --seconds 60` divides a minute between all targets. A corpus grows in `--work`; `--update` adds new
inputs to the archives in `fuzz/corpora`, up to `MAX_CORPUS_BYTES` for each target. A target is a format of
`tests/fuzz/formats` (by atheris), or a program of `native` (by libFuzzer with AddressSanitizer and UndefinedBehaviorSanitizer).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from build import NATIVE_TARGETS, build_native_targets, find_clang  # noqa: E402

from fuzz import FORMATS  # noqa: E402

CORPORA = HERE / "corpora"
MAX_CORPUS_BYTES = 100_000
_STATISTIC = re.compile(r"stat::number_of_executed_units:\s*(\d+)")
# Imports may take minutes on a busy machine, and do not count as part of the duration.
_START_SECONDS = 1200
_PROGRESS = re.compile(r"#(\d+)\s.*?cov: (\d+) ft: (\d+) corp: (\d+)")


class TargetResult(NamedTuple):
    """Counts of a target's runs."""

    target: str
    executions: int
    seconds: float
    edges: int
    inputs: int
    findings: int


def find_image_libraries() -> dict[str, str]:
    """Return the environment variables with the paths of libjpeg and libpng."""
    from meshflow.kernels.jpeg import find_pillow_libraries  # noqa: PLC0415 - only native targets need it

    paths = {}
    for variable, pattern in (
        ("MESHFLOW_JPEG", "libjpeg-*.so.62.*"),
        ("MESHFLOW_PNG", "libpng16-*"),
    ):
        paths[variable] = str(next(iter(find_pillow_libraries(pattern))))
    return paths


def run_target(
    target: str, command: Sequence[str], seconds: float, work: Path, environment: Mapping[str, str]
) -> TargetResult:
    """Run a target for some seconds, and again after each crash or hang.

    Args:
      target: Name of the target.
      command: Its program.
      seconds: Duration.
      work: Folder for the corpora, findings and logs.
      environment: Environment variables of the program.
    """
    corpus, findings = work / "corpora" / target, work / "findings" / target
    for folder in (corpus, findings):
        folder.mkdir(parents=True, exist_ok=True)
    seeds = unpack_corpus(target, work)
    executions, edges, inputs, begin = 0, 0, 0, time.monotonic()
    while (left := int(seconds - (time.monotonic() - begin))) > 0:
        options = [
            f"-max_total_time={left}",
            f"-artifact_prefix={findings}/",
            "-print_final_stats=1",
        ]
        log = work / f"{target}.log"
        with log.open("wb") as file:
            # A target that does not start, or does not end by itself, is ended.
            done = subprocess.run(
                ["timeout", str(left + _START_SECONDS), *command, *options, str(corpus), str(seeds)],
                stderr=file, stdout=subprocess.DEVNULL, env=environment, check=False,
            )  # fmt: skip
        text = log.read_text(errors="replace")
        progress = _PROGRESS.findall(text)
        if progress:
            edges, inputs = max(edges, int(progress[-1][1])), int(progress[-1][3])
        counts = _STATISTIC.findall(text) or [p[0] for p in progress] or ["0"]
        executions += int(counts[-1])
        if done.returncode == 0:
            break
        if not progress or done.returncode == 124:
            (findings / "start.txt").write_text(text[-4000:])
            break
    found = [p for p in findings.iterdir() if p.suffix != ".txt" or p.stem == "start"]
    return TargetResult(target, executions, time.monotonic() - begin, edges, inputs, len(found))


def unpack_corpus(target: str, work: Path) -> Path:
    """Unpack the repository's corpus of a target, and return its folder."""
    folder, archive = work / "seeds" / target, CORPORA / f"{target}.zip"
    folder.mkdir(parents=True, exist_ok=True)
    if archive.exists():
        with zipfile.ZipFile(archive) as file:
            file.extractall(folder)
    return folder


def merge_corpus(target: str, work: Path) -> None:
    """Add the smallest new inputs to the repository's corpus of a target."""
    seeds = {path.name: path for path in unpack_corpus(target, work).iterdir()}
    size = sum(path.stat().st_size for path in seeds.values())
    new = [path for path in (work / "corpora" / target).iterdir() if path.name not in seeds]
    for path in sorted(new, key=lambda p: (p.stat().st_size, p.name)):
        size += path.stat().st_size
        if size > MAX_CORPUS_BYTES:
            break
        seeds[path.name] = path
    with zipfile.ZipFile(CORPORA / f"{target}.zip", "w") as file:
        for name in sorted(seeds):
            # An archive of the same inputs has the same bytes.
            file.writestr(zipfile.ZipInfo(name), seeds[name].read_bytes(), zipfile.ZIP_DEFLATED)


def main() -> None:
    """Run the targets in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help="names of targets; all by default")
    parser.add_argument(
        "--seconds", type=float, default=60, help="duration of all targets together"
    )
    parser.add_argument("--work", type=Path, default=Path("out/fuzz"), help="folder for new inputs")
    parser.add_argument("--update", action="store_true", help="add new inputs to fuzz/corpora")
    options = parser.parse_args()
    work = options.work.resolve()
    programs: dict[str, Path] = {}
    environment = {**os.environ, "FUZZ_FINDINGS": str(work / "findings")}
    if find_clang() is None:
        print("No clang on the PATH: the targets in C++ are left out.")
    elif not options.targets or set(options.targets) & set(NATIVE_TARGETS):
        programs = build_native_targets(work / "native")
        environment |= find_image_libraries()
    commands = {name: [str(path)] for name, path in programs.items()}
    if importlib.util.find_spec("atheris") is None:
        print("The targets in Python are left out: pip install 'meshflow-tf[fuzz]'.")
    else:
        commands |= {name: [sys.executable, str(HERE / "guided.py"), name] for name in FORMATS}
    chosen = options.targets or list(commands)
    if not chosen or set(chosen) - set(commands):
        sys.exit(
            f"There is no target {sorted(set(chosen) - set(commands))}; there are {sorted(commands)}."
        )
    results = []
    for target in chosen:
        result = run_target(
            target, commands[target], options.seconds / len(chosen), work, environment
        )
        results.append(result)
        rate = result.executions / max(result.seconds, 1)
        print(
            f"{target:18} {result.executions:9,} executions, {rate:8,.0f} per second, {result.edges:5} edges, "
            f"{result.inputs:4} inputs, {result.findings} findings", flush=True,
        )  # fmt: skip
        if options.update:
            merge_corpus(target, work)
    total = sum(result.executions for result in results)
    failed = [result.target for result in results if result.findings or not result.executions]
    print(f"{total:,} executions; {failed or 'no target'} with findings, in {work / 'findings'}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
