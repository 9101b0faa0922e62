"""Profiles in log folders, local or in an object store: finding, reading, and writing their pages."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from typing import Any

from meshflow.core.runtime.errors import (
    DataLossError,
    FailedPreconditionError,
    NotFoundError,
)
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.atomic_writes import replace_file
from meshflow.files.paths import to_path_string
from meshflow.profiler.description import FORMAT, SUFFIX
from meshflow.profiler.page import PAGE_FILE, format_page
from meshflow.profiler.report import Report, WorkerProfile, read_worker
from meshflow.profiler.traces import read_trace

# Path below a log folder where TensorBoard expects profiles.
PROFILES = "plugins/profile"
_TRACES = (".xplane.pb", ".trace.json.gz")
# File that holds the reasons for missing traces, by worker.
MISSING_FILE = "meshflow.missing.json"
# Seconds by which folders of one profile may differ: workers that start by themselves use their own
# clocks.
_MAX_CLOCK_DIFFERENCE = 5.0


def _find_traces(folder: str) -> dict[str, str]:
    """Map the stem of each worker's file names to its trace."""
    traces: dict[str, str] = {}
    for name in sorted(gfile.listdir(folder)):
        for ending in _TRACES:
            if name.endswith(ending):
                known = traces.get(name.removesuffix(ending))
                # The JSON trace is read only if there is no XSpace.
                if known is None or known.endswith(_TRACES[1]):
                    traces[name.removesuffix(ending)] = name
    return traces


def find_profiles(logdir: StrPath) -> list[str]:
    """Return the folders of profiles in a log folder, the oldest first; a profile returns itself.

    Raises:
      NotFoundError: If there is none.
    """
    root = to_path_string(logdir).rstrip("/")
    if gfile.isdir(root):
        if _find_traces(root):
            return [root]
        for base in (gfile.join(root, PROFILES), root):
            if gfile.isdir(base):
                names = sorted(name.rstrip("/") for name in gfile.listdir(base))
                folders = [gfile.join(base, name) for name in names]
                folders = [
                    folder for folder in folders if gfile.isdir(folder) and _find_traces(folder)
                ]
                if folders:
                    return folders
    raise NotFoundError(
        None,
        None,
        f"There is no profile in {root}: expected {PROFILES}/<time>/<worker>.xplane.pb there. Take one with "
        "tf.profiler.experimental.Profile(logdir), or `meshflow profile record`.",
    )


def _parse_time(folder: str) -> float | None:
    name = folder.rstrip("/").rpartition("/")[2]
    if re.fullmatch(r"\d{4}(_\d\d){5}", name) is None:
        return None
    return time.mktime(time.strptime(name, "%Y_%m_%d_%H_%M_%S"))


def _find_related(folder: str, candidates: list[str]) -> list[str]:
    """Return a folder and those of other workers that were recorded at the same time."""
    stems, time_ = set(_find_traces(folder)), _parse_time(folder)
    related = [folder]
    for candidate in reversed(candidates):
        candidate_time = _parse_time(candidate)
        is_near = (
            time_ is not None
            and candidate_time is not None
            and abs(candidate_time - time_) <= _MAX_CLOCK_DIFFERENCE
        )
        if candidate != folder and is_near and not stems & set(_find_traces(candidate)):
            related.append(candidate)
            stems |= set(_find_traces(candidate))
    return related


def load_report(logdir: StrPath) -> Report:
    """Load the newest profile in a log folder, or the profile in this folder.

    Raises:
      NotFoundError: If there is none.
      DataLossError: If none of its traces can be read.
      FailedPreconditionError: If it was written in the format of another version of Meshflow.
    """
    folders = find_profiles(logdir)
    return read_report(_find_related(folders[-1], folders))


def read_report(folders: Sequence[str]) -> Report:
    """Read the profile with traces in these folders; workers with unreadable traces are `missing`."""
    workers, missing = [], {}
    last: Exception | None = None
    for folder in folders:
        missing.update(_read_missing(folder))
        for stem, file in _find_traces(folder).items():
            description = _read_description(folder, stem)
            name = str(description.get("worker") or stem)
            try:
                content = gfile.GFile(gfile.join(folder, file), "rb").read()
                trace = read_trace(content, gfile.join(folder, file))
            except DataLossError as error:
                last, missing[name] = error, str(error)
                continue
            json_trace = gfile.join(folder, f"{stem}{_TRACES[1]}")
            viewable = json_trace if gfile.exists(json_trace) else ""
            workers.append(read_worker(name, trace, description, viewable))
    if not workers:
        raise last or DataLossError(f"There is no trace in {folders[0]}.")
    _make_names_unique(workers)
    workers.sort(key=lambda w: _make_sort_key(w.name))
    return Report(folders[0].rstrip("/").rpartition("/")[2], workers, missing=missing)


def _make_sort_key(name: str) -> list[int | str]:
    return [int(piece) if piece.isdigit() else piece for piece in re.split(r"(\d+)", name)]


def _make_names_unique(workers: list[WorkerProfile]) -> None:
    names = [w.name for w in workers]
    for i, worker in enumerate(workers):
        if names.count(worker.name) > 1:
            worker.name = f"{worker.name} ({i})"


def _read_missing(folder: str) -> dict[str, str]:
    path = gfile.join(folder, MISSING_FILE)
    return json.loads(gfile.GFile(path).read()) if gfile.exists(path) else {}


def _read_description(folder: str, stem: str) -> dict[str, Any]:
    path = gfile.join(folder, stem + SUFFIX)
    if not gfile.exists(path):
        return {}
    try:
        description = json.loads(gfile.GFile(path).read())
        file_format = description["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataLossError(
            f"{path} cannot be read: it is truncated ({error}). Delete it to read the trace without layers."
        ) from error
    if file_format != FORMAT:
        raise FailedPreconditionError(
            f"{path} was written by Meshflow {description.get('version')} in format {file_format}, expected format "
            f"{FORMAT}. Read it with that version, or delete the file to read the trace without layers."
        )
    return description


def write_page(folder: str, report: Report | None = None) -> str:
    """Write the page of a profile to a folder, by default of the profile in it; return its path."""
    report = report or load_report(folder)
    path = gfile.join(folder, PAGE_FILE)
    with replace_file(path, "w") as file:
        file.write(format_page(report, folder))
    return path
