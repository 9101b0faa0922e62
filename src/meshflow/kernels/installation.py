"""Location of oneDNN, and the command that repairs an installation without kernels."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shlex
import sys
import urllib.parse
import urllib.request
from pathlib import Path

ONEDNN_FILE = "libdnnl.so.3"
# Name of our distribution; "meshflow" is another project on PyPI.
DISTRIBUTION = "meshflow-tf"
ONEDNN_PACKAGE = "onednn-cpu-gomp"
OPENMP_REMEDY = "install GNU OpenMP with the system's package manager (libgomp1 or libgomp)"


def has_onednn() -> bool:
    """Check whether the kernels of this platform include oneDNN."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def is_supported_platform() -> bool:
    """Check whether kernels exist for this platform: all on x86-64, those without oneDNN on aarch64."""
    return sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")


def describe_platform() -> str:
    """Return the reason for missing kernels on a platform for which none exist, and how to silence the warning."""
    return (
        f"there are none for {platform.system()} on {platform.machine()}, so XLA computes everything. "
        "MESHFLOW_KERNELS=xla silences this warning."
    )


def find_onednn() -> Path | None:
    """Return oneDNN's shared library, from our wheel or from its own package; None if missing."""
    bundled = Path(__file__).with_name(ONEDNN_FILE)
    if bundled.exists():
        return bundled
    try:
        files = importlib.metadata.files(ONEDNN_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    candidates = (Path(file.locate()) for file in files if file.name == ONEDNN_FILE)
    return next((path.resolve() for path in candidates if path.exists()), None)


def suggest_remedy() -> str:
    """Return the command that repairs missing or damaged kernels of this installation."""
    compiler = "with a C++ compiler on the PATH"
    try:
        installed = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return f"{compiler}, run: pip install {_format_editable(str(Path(__file__).parents[3]))}"
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    source = _format_source(origin)
    if source.endswith(".whl"):
        return f"install a wheel that `make wheel` made from Meshflow's source, {compiler}"
    editable = bool(origin.get("dir_info", {}).get("editable"))
    requirement = _format_editable(source) if editable else shlex.quote(source)
    if source == DISTRIBUTION and not has_onednn():
        # The index has no wheel with the kernels for this machine.
        requirement = f"--no-binary {DISTRIBUTION} {DISTRIBUTION}"
    # An environment of uv has no pip. Neither installer may use a wheel from its cache.
    if (installed.read_text("INSTALLER") or "").strip() == "uv":
        return f"{compiler}, run: uv pip install --reinstall-package {DISTRIBUTION} {requirement}"
    flags = "" if editable else "--force-reinstall --no-deps "
    return f"{compiler}, run: pip install --no-cache-dir {flags}{requirement}"


def _format_editable(source: str) -> str:
    """Return the arguments that install an editable checkout with the oneDNN package."""
    return f"--editable {shlex.quote(f'{source}[kernels]')}"


def _format_source(origin: dict[str, dict[str, str]]) -> str:
    """Return the installer argument for a package, given its recorded origin (PEP 610)."""
    url = str(origin.get("url", DISTRIBUTION))
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        return f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    parts = urllib.parse.urlsplit(url)
    return urllib.request.url2pathname(parts.path) if parts.scheme == "file" else url
