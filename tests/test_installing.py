"""Meshflow as users install it: wheels and sources, pip and uv, fresh environments, with a compiler and without."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import helpers
from meshflow.kernels import installation

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))
import hatch_build

pytestmark = [
    pytest.mark.skipif(not installation.has_onednn(), reason="no CPU kernels for this machine"),
    pytest.mark.timeout(3600),
]
# A product that the kernels compute, and the path of the loaded library.
PROGRAM = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import meshflow as tf
    from meshflow import kernels
    x = tf.ones([512, 512])
    for product in (tf.matmul, tf.function(tf.matmul)):
        assert float(product(x, x)[0, 0]) == 512
maps = open("/proc/self/maps").read().splitlines()
print(sorted({line.split()[-1] for line in maps if "libdnnl" in line or "libmeshflow" in line}))
print([str(w.message) for w in caught if "left to XLA" in str(w.message)])
"""
# A compiler that only preprocesses the sources, which finds missing files and headers, and "links" the library that
# `make venv` has compiled from the same sources with the same commands.
COMPILER = """#!/bin/sh
case " $* " in
*" -shared "*) for output; do :; done; exec cp '{library}' "$output" ;;
*) exec c++ -E "$@" ;;
esac
"""


def run(*command, folder, seconds=1500, **environment):
    """Return the output of a command that uses neither this checkout nor settings of pytest or the
    user."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "MESHFLOW_KERNELS")
    kept = {k: v for k, v in os.environ.items() if k not in hidden}
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=folder,
        env={**kept, "MESHFLOW_CACHE_DIR": "", "COLUMNS": "200", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=seconds)
    finally:
        # Compilers and builds that it started, where it ran out of time.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, text[-6000:]
    return text


class Environment:
    """A fresh virtual environment.

    Args:
      folder: where to make it.
      installer: "pip" or "uv".
    """

    def __init__(self, folder, installer):
        self.folder, self.python = folder, folder / "bin" / "python"
        uv = (sys.executable, "-m", "uv")
        # An environment of uv has no pip.
        seeds = ["--seed"] if installer == "pip" else []
        run(*uv, "venv", "--python", sys.executable, *seeds, folder, folder=folder.parent)
        uv += ("pip", "install", "--python", self.python)
        # pip's resolver tries incompatible versions for very long; the versions that uv finds are
        # installed.
        pip = (self.python, "-m", "pip", "install", "--constraint", ROOT / "requirements.lock")
        # Imported modules are compiled to bytecode at that time; few are imported.
        pip += ("--no-compile",)
        self.installer = pip if installer == "pip" else uv

    def install(self, *arguments, **environment):
        """Run the installer."""
        return run(*self.installer, *arguments, folder=self.folder.parent, **environment)

    def borrow(self):
        """Lends it the packages of the environment that runs the tests: JAX is large."""
        site = next(self.folder.glob("lib/python3*/site-packages"))
        (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def doctor(self):
        """Return the output of `meshflow doctor`."""
        return run(self.folder / "bin" / "meshflow", "doctor", folder=self.folder.parent)

    def program(self, **environment):
        """Return the libraries that a program loaded, and its warnings."""
        command = (self.python, "-W", "error::RuntimeWarning", "-c", PROGRAM)
        files, warned = run(*command, folder=self.folder.parent, **environment).splitlines()[-2:]
        return eval(files), eval(warned)


def check(environment):
    """It computes with the kernels that it was installed with."""
    assert "oneDNN 3." in environment.doctor()
    files, warned = environment.program()
    assert [Path(file).name for file in files] == [
        installation.ONEDNN_FILE,
        "libmeshflow_onednn.so",
    ]
    assert all(Path(file).is_relative_to(environment.folder) for file in files), files
    assert not warned


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The unpacked source distribution."""
    folder = tmp_path_factory.mktemp("source")
    command = (sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", folder)
    run(*command, ROOT, folder=folder)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Skip tests that need a package index, or a compiler, if there is none."""
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        pytest.skip("no C++ compiler on the PATH")
    folder = tmp_path_factory.mktemp("index")
    wanted = ("--no-deps", "--target", folder, "onednn-devel-cpu-gomp==2023.2.0")
    try:
        run(sys.executable, "-m", "uv", "pip", "install", *wanted, folder=folder)
    except AssertionError as error:
        pytest.skip(f"no package index is reached: {str(error).strip().splitlines()[-1]}")


@pytest.fixture(scope="module")
def built(tmp_path_factory, index):
    """The folder that `make wheel` fills."""
    folder = tmp_path_factory.mktemp("dist")
    # The compiler and zip take most of the time: only `make test-all` builds without these settings.
    settings = {"AUDITWHEEL_ZIP_COMPRESSION_LEVEL": "1", "CXXFLAGS": "-O0"}
    if hatch_build.is_up_to_date():
        compiler = tmp_path_factory.mktemp("compiler") / "c++"
        compiler.write_text(COMPILER.format(library=hatch_build.TARGET))
        compiler.chmod(0o755)
        settings["CXX"] = str(compiler)
    settings = helpers.rounds(settings, {})
    run("bash", ROOT / "scripts" / "wheel.sh", sys.executable, folder, folder=ROOT, **settings)
    return folder


@pytest.mark.long
def test_wheel_contains_kernels_and_their_libraries(built, tmp_path):
    (wheel,) = built.glob("*-manylinux_2_*.whl")
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    (pure,) = built.glob("meshflow_tf-*-py3-none-any.whl")
    with zipfile.ZipFile(pure) as archive:
        names = archive.namelist()
        metadata = archive.read("meshflow_tf-{}.dist-info/METADATA".format(pure.name.split("-")[1]))
    assert not any(name.endswith((".so", ".so.3")) for name in names)
    assert b"\nRequires-Python: >=3.11\n" in metadata and b"\nRequires-Dist: jaxlib<" in metadata
    assert len(list(built.glob("meshflow_tf-*.whl"))) == 2
    assert list(built.glob("meshflow_as_tensorflow-*-py3-none-any.whl"))
    assert [path.name.endswith(".tar.gz") for path in built.iterdir()].count(True) == 1
    for installer in helpers.rounds(("uv",), ("pip", "uv")):
        environment = Environment(tmp_path / installer, installer)
        environment.install("--no-deps", wheel)
        environment.borrow()
        check(environment)


def test_optional_distribution_provides_tensorflow_unless_installed(tmp_path):
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path)
    run(*build, ROOT / "packaging" / "as_tensorflow", folder=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        stub = archive.read("tf_keras-stubs/layers/__init__.pyi").decode()
    assert "from meshflow.keras.layers import Dense as Dense\n" in stub
    environment = Environment(tmp_path / "venv", "uv")
    environment.install("--no-deps", "--no-index", wheel)
    environment.borrow()
    site = next(environment.folder.glob("lib/python3*/site-packages"))
    (site / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT / 'src'}\n")
    program = (
        "import importlib.metadata, tensorflow\n"
        "print(tensorflow.__file__, importlib.metadata.version('tensorflow'))"
    )
    found = run(environment.python, "-c", program, folder=tmp_path)
    assert "shims/packages/tensorflow" in found and found.rstrip().endswith(" 2.15.1"), found
    # Another TensorFlow is neither overwritten nor hidden.
    (site / "tensorflow").mkdir()
    (site / "tensorflow" / "__init__.py").write_text("")
    found = run(environment.python, "-c", "import tensorflow; print(tensorflow)", folder=tmp_path)
    assert (
        "pip uninstall tensorflow keras tf_keras" in found and "site-packages/tensorflow" in found
    )


def test_missing_compiler_warns_once_at_the_first_use(source, tmp_path):
    environment = Environment(tmp_path / "venv", "uv")
    environment.borrow()
    (tmp_path / "programs").mkdir()
    environment.install(
        *("--no-deps", "--no-index", "--no-build-isolation", source),
        PATH=str(tmp_path / "programs"),
        CXX="/nonexistent",
    )
    info = next(environment.folder.glob("lib/python3*/site-packages/meshflow_tf-*.dist-info"))
    wheel = (info / "WHEEL").read_text()
    assert "Root-Is-Purelib: true" in wheel and "Tag: py3-none-any" in wheel
    line = f"with a C++ compiler on the PATH, run: uv pip install --reinstall-package meshflow-tf {source}"
    files, warned = environment.program()
    assert files == [] and len(warned) == 1 and warned[0].endswith(line)
    assert environment.program(MESHFLOW_KERNELS="xla") == ([], [])
    assert line in environment.doctor()


def test_the_kernels_of_a_wheel_are_compiled_for_the_oldest_jax():
    """The headers of a newer jaxlib make handlers that an older one refuses, and then JAX does not start."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    (headers,) = (line for line in hook["dependencies"] if line.startswith("jaxlib"))
    (runtime,) = (line for line in project["project"]["dependencies"] if line.startswith("jaxlib"))
    oldest, _, _ = runtime.removeprefix("jaxlib").partition(",")
    assert headers.removeprefix("jaxlib").startswith(f"{oldest},<")
    major, minor = map(int, oldest.removeprefix(">=").split("."))
    assert f",<{major}.{minor + 1};" in headers


@pytest.mark.soak
def test_suggested_command_fixes_the_installation(source, index, tmp_path):
    for name in ("pip", "uv"):
        environment = Environment(tmp_path / name, name)
        environment.install(source, CXX="/nonexistent", PATH=str(tmp_path))
        line = environment.program()[1][0].partition("run: ")[2]
        assert line.startswith(name)
        programs = (
            f"{environment.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        )
        run(
            *("bash", "-c", line),
            folder=tmp_path,
            PATH=programs,
            VIRTUAL_ENV=str(environment.folder),
        )
        check(environment)


@pytest.mark.soak
@pytest.mark.parametrize("installer", ["pip", "uv"])
@pytest.mark.parametrize("kind", ["*-manylinux_2_*.whl", "*.tar.gz"])
def test_installation_with_all_dependencies(built, kind, installer, tmp_path):
    """Test an installation from the index, including extras, and a separate build of the source."""
    environment = Environment(tmp_path / "venv", installer)
    (file,) = built.glob(kind)
    environment.install(f"meshflow-tf[all] @ {file.as_uri()}")
    check(environment)


@pytest.mark.soak
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("extra", ["all", "dev", "cuda", "cuda12", "tpu"])
def test_extras_resolve(index, version, extra, tmp_path):
    command = (sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--python-version", version)
    found = run(*command, "--extra", extra, ROOT / "pyproject.toml", folder=tmp_path)
    expected = {"cuda": "jax-cuda13-plugin", "cuda12": "jax-cuda12-plugin", "tpu": "libtpu"}
    assert f"{expected.get(extra, 'jaxlib')}==" in found
