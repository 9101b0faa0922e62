"""Profiles as they lie in log folders, here or in a store: finding, reading, and writing their pages."""

from __future__ import annotations

import json
import re
import time
from typing import Any

from meshflow.core.runtime.errors import (
    DataLossError,
    FailedPreconditionError,
    NotFoundError,
)
from meshflow.files import gfile
from meshflow.files.paths import text
from meshflow.files.replacing import replacing
from meshflow.profiler.description import FORMAT, SUFFIX
from meshflow.profiler.page import PAGE, page
from meshflow.profiler.report import Report, read_worker
from meshflow.profiler.traces import read_trace

__all__ = ["PROFILES", "load", "profiles", "read", "write_page"]

# Below a log folder, where TensorBoard looks too.
PROFILES = "plugins/profile"
_TRACES = (".xplane.pb", ".trace.json.gz")
# Why a worker's trace is not there, in a file of this name.
MISSING = "meshflow.missing.json"
# Workers that begin by themselves name their folders by their own clocks, seconds apart.
_TOGETHER = 5.0


def _stems(folder: str) -> dict[str, str]:
    """The workers' files in a folder: the file with the trace, by the part of its name in front."""
    found: dict[str, str] = {}
    for name in sorted(gfile.listdir(folder)):
        for ending in _TRACES:
            if name.endswith(ending):
                known = found.get(name.removesuffix(ending))
                # The second kind is read where there is none of the first.
                if known is None or known.endswith(_TRACES[1]):
                    found[name.removesuffix(ending)] = name
    return found


def profiles(logdir: Any) -> list[str]:
    """The folders of profiles in a log folder, the oldest first; the log folder itself when it is one.

    Raises:
      NotFoundError: when there is none.
    """
    root = text(logdir).rstrip("/")
    if gfile.isdir(root):
        if _stems(root):
            return [root]
        for base in (gfile.join(root, PROFILES), root):
            if gfile.isdir(base):
                names = sorted(name.rstrip("/") for name in gfile.listdir(base))
                found = [gfile.join(base, name) for name in names]
                found = [folder for folder in found if gfile.isdir(folder) and _stems(folder)]
                if found:
                    return found
    raise NotFoundError(
        None,
        None,
        f"There is no profile in {root}: expected {PROFILES}/<time>/<worker>.xplane.pb there. Take one with "
        "tf.profiler.experimental.Profile(logdir), or `meshflow profile record`.",
    )


def _seconds(folder: str) -> float | None:
    name = folder.rstrip("/").rpartition("/")[2]
    if re.fullmatch(r"\d{4}(_\d\d){5}", name) is None:
        return None
    return time.mktime(time.strptime(name, "%Y_%m_%d_%H_%M_%S"))


def _beside(folder: str, others: list[str]) -> list[str]:
    """A folder, and those of other workers that were taken with it."""
    own, when = set(_stems(folder)), _seconds(folder)
    chosen = [folder]
    for other in reversed(others):
        began = _seconds(other)
        near = when is not None and began is not None and abs(began - when) <= _TOGETHER
        if other != folder and near and not own & set(_stems(other)):
            chosen.append(other)
            own |= set(_stems(other))
    return chosen


def load(logdir: Any) -> Report:
    """The newest profile in a log folder, or the one whose folder is given.

    Raises:
      NotFoundError: when there is none.
      DataLossError: when none of its traces can be read.
      FailedPreconditionError: when another version of Meshflow wrote it, in another format.
    """
    found = profiles(logdir)
    return read(_beside(found[-1], found))


def read(folders: list[str]) -> Report:
    """The profile whose traces lie in some folders; workers whose trace cannot be read are `missing`."""
    workers, missing = [], {}
    last: Exception | None = None
    for folder in folders:
        missing.update(_told_missing(folder))
        for stem, file in _stems(folder).items():
            described = _description(folder, stem)
            name = str(described.get("worker") or stem)
            try:
                content = gfile.GFile(gfile.join(folder, file), "rb").read()
                trace = read_trace(content, gfile.join(folder, file))
            except DataLossError as error:
                last, missing[name] = error, str(error)
                continue
            opened = gfile.join(folder, f"{stem}{_TRACES[1]}")
            shown = opened if gfile.exists(opened) else ""
            workers.append(read_worker(name, trace, described, shown))
    if not workers:
        raise last or DataLossError(f"There is no trace in {folders[0]}.")
    _name_apart(workers)
    workers.sort(key=lambda w: _by_number(w.name))
    return Report(folders[0].rstrip("/").rpartition("/")[2], workers, missing=missing)


def _by_number(name: str) -> list[Any]:
    return [int(piece) if piece.isdigit() else piece for piece in re.split(r"(\d+)", name)]


def _name_apart(workers: list[Any]) -> None:
    names = [w.name for w in workers]
    for number, worker in enumerate(workers):
        if names.count(worker.name) > 1:
            worker.name = f"{worker.name} ({number})"


def _told_missing(folder: str) -> dict[str, str]:
    path = gfile.join(folder, MISSING)
    return json.loads(gfile.GFile(path).read()) if gfile.exists(path) else {}


def _description(folder: str, stem: str) -> dict[str, Any]:
    path = gfile.join(folder, stem + SUFFIX)
    if not gfile.exists(path):
        return {}
    try:
        found = json.loads(gfile.GFile(path).read())
        form = found["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataLossError(
            f"{path} cannot be read: it is cut off ({error}). Delete it to read the trace without."
        ) from error
    if form != FORMAT:
        raise FailedPreconditionError(
            f"{path} was written by Meshflow {found.get('version')} in format {form}; this is a version for format "
            f"{FORMAT}. Read it with that version, or delete the file to read the trace without layers."
        )
    return found


def write_page(folder: str, report: Report | None = None) -> str:
    """Writes the page of a profile into its folder, or into another one.

    Args:
      folder: where to.
      report: the profile, when it is read already.

    Returns:
      The page's path.
    """
    report = report or load(folder)
    path = gfile.join(folder, PAGE)
    with replacing(path, "w") as file:
        file.write(page(report, folder))
    return path
