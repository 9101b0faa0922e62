"""`meshflow doctor` as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import forked
from meshflow._version import __version__
from meshflow.cli import doctor
from meshflow.cli.commands import app
from meshflow.environment.jax_internals import SUPPORTED


def in_another_process(**environment):
    """Return the exit code and the text of the command in an environment with the given kernels."""
    program = "import sys; sys.argv = ['meshflow', 'doctor']; from meshflow.cli import main; main()"
    return forked.run(program, COLUMNS="120", **environment)


def test_doctor_names_the_convolution_kernels():
    program = Path(sys.executable).with_name("meshflow")
    done = subprocess.run(
        [str(program), "doctor"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "120"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for expected in ("Machine", "Devices", "cpu", "jaxlib", "convolution", "mixed_float8"):
        assert expected in done.stdout


def test_doctor_suggests_packages_if_kernels_are_missing():
    code, text = in_another_process(MESHFLOW_KERNELS="xla")
    assert code == 0 and "MESHFLOW_KERNELS=xla" in text
    assert "oneDNN" not in "".join(line for line in text.splitlines() if "convolution" in line)
    assert "unset MESHFLOW_KERNELS" in text and "pip install" not in text
    assert "slower" in next(line for line in text.splitlines() if "mixed_bfloat16" in line)


def test_findings_are_data():
    found = doctor.find_implementations()
    assert set(found) >= {"convolution", "matrix product"}
    assert all(set(row) == {"float32", "bfloat16", "float16"} for row in found.values())


def install(folder, name, tag="py3-none-any", files=()):
    """A distribution, for importlib.metadata to find."""
    info = folder / f"{name.replace('-', '_')}-1.dist-info"
    info.mkdir(parents=True)
    lines = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\nRequires-Python: >=3.11\n"
    (info / "METADATA").write_text(lines)
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: {tag}\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))


@pytest.mark.parametrize("tag", ["cp311-linux_x86_64", "py3-none-manylinux_2_90_x86_64"])
def test_supported_versions_are_those_of_the_installation(tag, tmp_path, monkeypatch):
    install(tmp_path, "meshflow-tf", tag)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = doctor.describe_supported_versions()
    assert text.startswith(f"Python >=3.11, JAX and jaxlib {SUPPORTED}")
    # Those of jaxlib's wheel are below 2.90.
    assert text.endswith(", glibc >=2.90") == ("manylinux" in tag)
    assert ("supported", text) in doctor.collect_findings()["Versions"]


def test_doctor_detects_another_project_of_the_same_name(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path / "apart"))
    install(tmp_path / "apart", "meshflow", files=["meshflow/__init__.py"])
    (advice,) = (line for line in doctor.list_advice() if "pip uninstall meshflow" in line)
    assert "meshflow 1 is installed. It is another project" in advice and "meshflow-tf" in advice
    # As when both are installed in one environment.
    together = tmp_path / "together"
    install(together, "meshflow", files=[f"{Path(doctor.__file__).parents[1]}/__init__.py"])
    monkeypatch.syspath_prepend(str(together))
    assert "is installed in the same folder" in doctor.find_other_distribution()


def test_version_and_help():
    assert CliRunner().invoke(app, ["--version"]).output == f"{__version__}\n"
    assert "doctor" in CliRunner().invoke(app, ["--help"]).output


def test_an_unknown_choice_of_kernels_is_named():
    code, text = in_another_process(MESHFLOW_KERNELS="fast")
    assert code == 1 and "must be 'auto', 'onednn' or 'xla', got 'fast'" in text
    assert "Traceback" not in text
