"""How the kernels got here: where oneDNN lies, and which command mends an installation without them."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shlex
import sys
import urllib.parse
import urllib.request
from pathlib import Path

ONEDNN = "libdnnl.so.3"
PACKAGE = "onednn-cpu-gomp"
OPENMP = "install GNU OpenMP with the system's package manager (libgomp1 or libgomp)"


def possible() -> bool:
    """Whether there can be kernels on this machine at all."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def onednn() -> Path | None:
    """oneDNN's shared library: the wheel's own, or that of the package beside an editable install."""
    own = Path(__file__).with_name(ONEDNN)
    if own.exists():
        return own
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = (Path(file.locate()) for file in files if file.name == ONEDNN)
    return next((path.resolve() for path in found if path.exists()), None)


def remedy() -> str:
    """What to do for kernels where they are missing or damaged: the command for this very installation."""
    compiler = "with a C++ compiler on the PATH"
    try:
        installed = importlib.metadata.distribution("meshflow")
    except importlib.metadata.PackageNotFoundError:
        return f"{compiler}, run: pip install {_editable(str(Path(__file__).parents[3]))}"
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    source = _source(origin)
    if source.endswith(".whl"):
        return f"install a wheel that `make wheel` made from Meshflow's source, {compiler}"
    editable = bool(origin.get("dir_info", {}).get("editable"))
    wanted = _editable(source) if editable else shlex.quote(source)
    # Environments of uv have no pip; neither installer may take what it built before.
    if (installed.read_text("INSTALLER") or "").strip() == "uv":
        return f"{compiler}, run: uv pip install --reinstall-package meshflow {wanted}"
    again = "" if editable else "--force-reinstall --no-deps "
    return f"{compiler}, run: pip install --no-cache-dir {again}{wanted}"


def _editable(source: str) -> str:
    """The arguments that install a checkout to work on, with the oneDNN that it needs beside it."""
    return f"--editable {shlex.quote(f'{source}[kernels]')}"


def _source(origin: dict[str, dict[str, str]]) -> str:
    """What to name to an installer, of what it wrote about a package's origin (PEP 610)."""
    url = str(origin.get("url", "meshflow"))
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        return f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    parts = urllib.parse.urlsplit(url)
    return urllib.request.url2pathname(parts.path) if parts.scheme == "file" else url
