"""`meshflow run` runs programs like `python`, except that `import tensorflow` loads Meshflow."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import forked

SOURCE = str(Path(__file__).parents[2] / "src")


def start(*arguments, folder, **options):
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, **options
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    (folder / "package").mkdir()
    (folder / "helper.py").write_text("def divide(x):\n    return x / 0\n")
    program = """
import atexit, helper, os, sys
atexit.register(print, "end")
folder = os.path.realpath(".")
print(__name__, __file__, __spec__ and __spec__.name, __package__, sys.argv, sys.path[0] == folder, sorted(k for k in globals() if k[0] != "_"))
match sys.argv[1:]:
    case ["exit", code]:
        sys.exit(int(code))
    case ["error"]:
        helper.divide(1)
    case ["interrupt"]:
        raise KeyboardInterrupt
    case ["hook"]:
        sys.excepthook = lambda kind, error, frames: print("hook", kind, error)
        helper.divide(1)
"""
    (folder / "program.py").write_text(program)
    (folder / "package" / "__main__.py").write_text(program)
    (folder / "wrong.py").write_text("x = (1\n")
    with zipfile.ZipFile(folder / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", "import sys; print(sys.argv, __name__, __file__)")
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ["program.py", "-m", "--flag=1"],
        ["program.py", "exit", "7"],
        ["program.py", "error"],
        ["program.py", "hook"],
        ["-m", "program", "error"],
        ["-m", "package", "a"],
        ["package"],
        ["app.pyz", "a"],
        ["wrong.py"],
        ["-c", "import sys; print(sys.argv, __name__); helper", "a"],
    ],
    ids=" ".join,
)
def test_programs_run_as_with_python(folder, arguments):
    expected = start(*arguments, folder=folder)
    found = start("-m", "meshflow", "run", *arguments, folder=folder)
    assert (found.returncode, found.stdout, found.stderr) == (
        expected.returncode,
        expected.stdout,
        expected.stderr,
    )


def test_interrupts_end_the_program(folder):
    found = start("-m", "meshflow", "run", "program.py", "interrupt", folder=folder)
    assert found.returncode == 130 and found.stderr.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["none.py"], "there is no script none.py"),
        (["saved"], "Call its signature by `meshflow predict saved`"),
        (["empty"], "the folder empty has no __main__.py"),
        (["-x", "a"], "usage: meshflow run script.py"),
        (["-m"], "usage: meshflow run script.py"),
    ],
)
def test_wrong_arguments(folder, arguments, message):
    for name in ("saved", "empty"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "saved" / "saved_model.pb").write_bytes(b"")
    code, output = forked.run(f"""
import os, sys
from meshflow.cli.run import run_program
sys.stderr = sys.stdout
os.chdir({str(folder)!r})
sys.exit(run_program({arguments}))
""")
    assert code == 2 and message in output


def test_processes_of_the_program_import_meshflow_too(folder):
    (folder / "processes.py").write_text("""
import multiprocessing, subprocess, sys
import tensorflow as tf

def compute(x):
    return type(tf.constant(x)).__module__, tf.__name__

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(compute, [1]))
    print(subprocess.check_output([sys.executable, "-c", "import keras; print(keras.Model.__module__)"], text=True))
""")
    found = start("-m", "meshflow", "run", "processes.py", folder=folder)
    assert re.search(r"tensorflow\.python.*'tensorflow'\)\]\s+meshflow\.keras", found.stdout), (
        found.stderr
    )
