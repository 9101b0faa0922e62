"""Test the search for oneDNN, and the command that repairs an installation without kernels."""

import json
from pathlib import Path

import pytest

from meshflow.kernels import installation

SOURCE = "/a folder/meshflow"
COMPILER = "with a C++ compiler on the PATH, run: "
CASES = {
    "a folder, by pip": (
        "pip",
        {"url": "file:///a%20folder/meshflow", "dir_info": {}},
        COMPILER + "pip install --no-cache-dir --force-reinstall --no-deps '/a folder/meshflow'",
    ),
    "a folder, by uv": (
        "uv",
        {"url": "file:///a%20folder/meshflow", "dir_info": {}},
        COMPILER + "uv pip install --reinstall-package meshflow-tf '/a folder/meshflow'",
    ),
    "a checkout to work on": (
        "pip",
        {"url": "file:///src", "dir_info": {"editable": True}},
        COMPILER + "pip install --no-cache-dir --editable '/src[kernels]'",
    ),
    "a repository": (
        "pip",
        {"url": "https://host/m.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
        COMPILER
        + "pip install --no-cache-dir --force-reinstall --no-deps git+https://host/m.git@abc",
    ),
    "an archive": (
        "uv",
        {"url": "https://host/meshflow-1.tar.gz", "archive_info": {}},
        COMPILER + "uv pip install --reinstall-package meshflow-tf https://host/meshflow-1.tar.gz",
    ),
    "an index": (
        "pip",
        None,
        COMPILER + "pip install --no-cache-dir --force-reinstall --no-deps meshflow-tf",
    ),
    "a wheel without kernels": (
        "pip",
        {"url": "file:///dist/meshflow-1-py3-none-any.whl", "archive_info": {}},
        "install a wheel that `make wheel` made from Meshflow's source, with a C++ compiler on the PATH",
    ),
}


def install(folder, name, **files):
    """A distribution's files, for importlib.metadata to find."""
    info = folder / f"{name.replace('-', '_')}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    for file, text in files.items():
        (info / file.replace("_json", ".json")).write_text(text)


@pytest.mark.parametrize("case", CASES)
def test_the_command_fits_the_installation(case, tmp_path, monkeypatch):
    installer, origin, expected = CASES[case]
    files = {"INSTALLER": f"{installer}\n"}
    if origin is not None:
        files["direct_url_json"] = json.dumps(origin)
    install(tmp_path, installation.DISTRIBUTION, **files)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(installation, "has_onednn", lambda: True)
    assert installation.suggest_remedy() == expected


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_an_index_has_wheels_with_kernels_for_x86_only(installer, tmp_path, monkeypatch):
    install(tmp_path, installation.DISTRIBUTION, INSTALLER=installer)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(installation, "has_onednn", lambda: False)
    assert installation.suggest_remedy().endswith(" --no-binary meshflow-tf meshflow-tf")


def test_a_source_that_is_not_installed_is_named(monkeypatch):
    def missing(name):
        raise installation.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(installation.importlib.metadata, "distribution", missing)
    root = Path(installation.__file__).parents[3]
    assert installation.suggest_remedy() == f"{COMPILER}pip install --editable '{root}[kernels]'"


def test_onednn_is_found_by_its_package_metadata(tmp_path, monkeypatch):
    """Test that oneDNN is not searched in sys.prefix, which pip's build environments, user sites
    and targets do not use."""
    packages = tmp_path / "lib" / "python3" / "site-packages"
    packages.mkdir(parents=True)
    library = tmp_path / "lib" / installation.ONEDNN_FILE
    library.write_bytes(b"")
    install(packages, installation.ONEDNN_PACKAGE, RECORD=f"../../{installation.ONEDNN_FILE},,\n")
    monkeypatch.syspath_prepend(str(packages))
    monkeypatch.setattr(installation, "__file__", str(tmp_path / "installation.py"))
    assert installation.find_onednn() == library
    # A wheel's kernels were tested with the library in the wheel.
    own = tmp_path / installation.ONEDNN_FILE
    own.write_bytes(b"")
    assert installation.find_onednn() == own
