"""Measure which files TensorFlow, tf-keras, Keras 3, LiteRT, ONNX Runtime and Meshflow can read from each other.

    python docs/exchange_matrix.py

TensorFlow is installed in an environment under `build/exchange`, unless MESHFLOW_PEERS_PYTHON names a Python that has it.
Results are stored there after each measurement, so an interrupted run resumes. `--again` repeats all measurements, and
`--again keras3` those of one program (tf-keras, keras3, litert or onnx). A complete run takes about ten minutes on two cores.

Each program writes each model of `tests/reference/exchange_cases.py` in each format, and the others read it. The largest
differences are written to `tests/reference/exchange.json`, the tables to `docs/exchange.md`, and TensorFlow's files to
`tests/reference/exchange.tar.xz`, so that tests can read them without TensorFlow.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "tests" / "reference"
NUMBERS = REFERENCE / "exchange.json"
STORED = REFERENCE / "exchange.tar.xz"
PAGE = ROOT / "docs" / "exchange.md"
BEGIN, END = "<!-- exchange_matrix.py: begin -->\n", "<!-- exchange_matrix.py: end -->"
BUILD = ROOT / "build" / "exchange"
PACKAGES = ("tensorflow-cpu==2.21.*", "tf-keras==2.21.*", "keras==3.15.*")
PYTHON = os.environ.get("MESHFLOW_PEERS_PYTHON", str(BUILD / "tensorflow" / "bin" / "python"))
# Values of TF_USE_LEGACY_KERAS.
PEERS = {"tf-keras": "1", "keras3": ""}
PEER_TITLES = {"tf-keras": "tf-keras", "keras3": "Keras 3"}
FORMATS = {
    "checkpoint": "checkpoint",
    "saved_model": "SavedModel",
    "keras": "`.keras`",
    "weights": "`.weights.h5`",
    "h5": "`.h5`",
}
# Written by Meshflow with keras_version=3.
KERAS_3_FORMATS = {
    "keras_of_3": "`.keras` (`keras_version=3`)",
    "h5_of_3": "`.h5` (`keras_version=3`)",
}
KIND_TITLES = {
    "mlp": "MLP",
    "cnn": "CNN",
    "resnet": "ResNet",
    "transformer": "transformer",
    "recurrent": "recurrent, masked",
    "text": "text input",
    "several": "two inputs and outputs, nested",
    "subclassed": "subclassed",
    "mixed": "mixed_bfloat16",
}

sys.path.insert(0, str(REFERENCE))
import exchange_cases as cases  # noqa: E402
import exchange_files as files  # noqa: E402

import meshflow as tf  # noqa: E402

STARTED = time.monotonic()


def print_progress(text):
    """Print a line with the elapsed time."""
    minutes, seconds = divmod(int(time.monotonic() - STARTED), 60)
    print(f"{minutes:3d}:{seconds:02d}  {text}", flush=True)


def prepare_environment():
    """Install TensorFlow if its environment does not exist."""
    if os.access(PYTHON, os.X_OK):
        return
    folder = pathlib.Path(PYTHON).parent.parent
    print_progress(f"installing {', '.join(PACKAGES)} into {folder}")
    partial = folder.with_name(folder.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", partial], check=True)
    subprocess.run(
        [partial / "bin" / "python", "-m", "pip", "install", "-q", *PACKAGES], check=True
    )
    partial.rename(folder)


def run_peer(program, task, folder):
    """Run a task of `exchange_files.py` in another program. The task resumes if it was interrupted."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "XLA_FLAGS")}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": PEERS[program]}
    command = [PYTHON, "-u", str(REFERENCE / "exchange_files.py"), task, str(folder)]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        for line in process.stdout:
            print_progress(f"{PEER_TITLES[program]}: {line.strip()}")
        if process.wait():
            errors.seek(0)
            raise RuntimeError(f"{program} could not {task}: {errors.read()[-3000:]}")


def attempt(measure, *args):
    """Return a difference, or the text of the exception."""
    try:
        return measure(*args)
    except Exception as error:  # the table reports it as "no"
        return f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"


def load_expected(folder, kind):
    """Load the outputs that the program that wrote a model computed."""
    with np.load(f"{folder}/{kind}.npz") as file:
        return dict(file)


def read_here(folder, kind, form):
    """Read a file with Meshflow and return the difference from the outputs of its writer."""
    return files.difference(files.read(tf, folder, kind, form), load_expected(folder, kind))


def read_there(folder, program, kind, form):
    """Return the difference of the outputs that another program computed from a file of Meshflow."""
    with np.load(f"{folder}/{kind}.{form}.{program}.npz") as file:
        found = dict(file)
    if program == "keras3" and form in ("keras", "h5_of_3"):  # without the optimizer's state
        found = {key: value for key, value in found.items() if not key.startswith("after")}
    if "error" in found:
        raise ValueError(str(found["error"]))
    return files.difference(found, load_expected(folder, kind))


def litert(kind):
    """Return the largest difference of a converted model in LiteRT, for all rows and for one."""
    model = cases.make_model(tf, kind)
    content = tf.lite.TFLiteConverter.from_keras_model(model).convert()
    call = tf.lite.Interpreter(model_content=content).get_signature_runner("serving_default")
    return _compare_deployed(
        model, kind, sorted(call.get_input_details()), lambda inputs: list(call(**inputs).values())
    )


def onnx(kind):
    """Return the largest difference of a converted model in ONNX Runtime, for all rows and for one."""
    model = cases.make_model(tf, kind)
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        model.export(f"{folder}/model.onnx", format="onnx")
        session = onnxruntime.InferenceSession(
            f"{folder}/model.onnx", providers=["CPUExecutionProvider"]
        )
    names = [argument.name for argument in session.get_inputs()]
    return _compare_deployed(model, kind, names, lambda inputs: session.run(None, inputs))


def _compare_deployed(model, kind, names, call):
    expected = cases.outputs(tf, model, kind)
    data = dict(zip(names, cases.data(kind), strict=True))
    if len(names) > 1:  # match by name, because the order of inputs may differ
        data = {name: cases.data(kind)[0 if "zeta" in name else 1] for name in names}
    worst = 0.0
    for rows in (None, 1):
        for output in call({name: x[:rows] for name, x in data.items()}):
            same_shape = [e for e in expected if e.shape[1:] == output.shape[1:]]
            worst = max(worst, min(float(np.abs(output - e[:rows]).max()) for e in same_shape))
    return worst


def list_stored_formats(folder, kind):
    """List the formats in which a folder contains a model."""

    def path(form):
        return files.place(folder, kind, form) + (".index" if form == "checkpoint" else "")

    return [form for form in (*files.FORMATS, *files.OF_KERAS_3) if os.path.exists(path(form))]


class Results:
    """Measured differences, written to a file after each measurement.

    Attributes:
      found: Differences by direction (`in`, `out`, `deployed`), program or runtime, kind of model, and format.
    """

    def __init__(self, folder):
        self._file = pathlib.Path(folder) / "numbers.json"
        self.found = json.loads(self._file.read_text()) if self._file.exists() else {}

    def add(self, direction, program, kind, measure, *args):
        """Measure a difference, unless it is already stored."""
        kinds = self.found.setdefault(direction, {}).setdefault(program, {})
        if kind in kinds:
            return
        value = kinds[kind] = measure(*args)
        self.write()
        cells = value.items() if isinstance(value, dict) else [(program, value)]
        text = ", ".join(f"{form} {_format_cell(v)}" for form, v in cells)
        print_progress(f"{kind} {direction}, {program}: {text}")

    def write(self):
        """Replace the file atomically."""
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps(self.found, indent=1) + "\n")
        part.replace(self._file)


def measure_formats(forms, measure, *args):
    """Return a difference for each format."""
    return {form: attempt(measure, *args, form) for form in forms}


def measure_all(folder):
    """Measure all differences.

    Returns:
      `in` and `out` by program, kind of model and format; `deployed` by runtime and kind.
    """
    here, results = pathlib.Path(folder) / "meshflow", Results(folder)
    for program in PEERS:
        there = pathlib.Path(folder) / program
        there.mkdir(parents=True, exist_ok=True)
        run_peer(program, "write", there)
        for kind in cases.KINDS:
            forms = list_stored_formats(there, kind)
            results.add("in", program, kind, measure_formats, forms, read_here, there, kind)
    for runtime in (litert, onnx):
        for kind in cases.KINDS:
            results.add("deployed", runtime.__name__, kind, attempt, runtime, kind)
    here.mkdir(exist_ok=True)
    not_written = files.write_all(tf, here)
    if not_written:
        raise RuntimeError(f"Not written: {not_written}")
    for program in PEERS:
        run_peer(program, "read", here)
        for kind in cases.KINDS:
            columns = _select_formats("out", program)
            forms = [f for f in list_stored_formats(here, kind) if f in columns]
            results.add(
                "out", program, kind, measure_formats, forms, read_there, here, program, kind
            )
    return results.found


def discard_results(folder, which):
    """Delete the results of some programs, or all of them."""
    folder = pathlib.Path(folder)
    if "all" in which:
        for name in ("meshflow", *PEERS):
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / "numbers.json").unlink(missing_ok=True)
    results = Results(folder)
    for program in which:
        for path in (folder / "meshflow").glob(f"*.{program}.npz"):
            path.unlink()
        shutil.rmtree(folder / program, ignore_errors=program in ("all", "litert", "onnx"))
        for kinds in results.found.values():
            kinds.pop(program, None)
    results.write()


def format_tables(numbers):
    """Return the tables of the page."""
    lines = []
    for direction, title in (
        ("in", "Written by {}, read by Meshflow"),
        ("out", "Written by Meshflow, read by {}"),
    ):
        for program in PEERS:
            rows, forms = numbers[direction][program], _select_formats(direction, program)
            lines += ["", title.format(PEER_TITLES[program]) + ":", ""]
            lines += [
                f"| model | {' | '.join(forms.values())} |",
                "| --- " * (len(forms) + 1) + "|",
            ]
            for kind in cases.KINDS:
                cells = " | ".join(_format_cell(rows[kind].get(form)) for form in forms)
                lines.append(f"| {KIND_TITLES[kind]} | {cells} |")
    lines += [
        "",
        "Converted by Meshflow, run by:",
        "",
        "| model | LiteRT | ONNX Runtime |",
        "| --- | --- | --- |",
    ]
    deployed = numbers["deployed"]
    for kind in cases.KINDS:
        cells = [_format_cell(deployed[runtime][kind]) for runtime in ("litert", "onnx")]
        lines.append(f"| {KIND_TITLES[kind]} | {' | '.join(cells)} |")
    return "\n".join(lines[1:]) + "\n"


def _select_formats(direction, program):
    """Return the titles of the formats that Meshflow and a program exchange."""
    return FORMATS | (KERAS_3_FORMATS if (direction, program) == ("out", "keras3") else {})


def _format_cell(value):
    if value is None:
        return "-"
    if isinstance(value, str):
        return "no"
    return f"{value:.0e}".replace("e-0", "e-").replace("0e+00", "0")


def main():
    """Measure all differences, and write the numbers, the tables and the stored files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", default=BUILD / "work", help="folder of files and results")
    choices = ["all", *PEERS, "litert", "onnx"]
    parser.add_argument(
        "--again", nargs="?", const="all", choices=choices, help="repeat measurements"
    )
    options = parser.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    if options.again:
        discard_results(options.folder, [options.again])
    prepare_environment()
    numbers = measure_all(options.folder)
    with tarfile.open(STORED, "w:xz") as archive:
        for program in PEERS:
            archive.add(f"{options.folder}/{program}", program, filter=_remove_metadata)
    NUMBERS.write_text(json.dumps(numbers, indent=1) + "\n")
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(before + BEGIN + format_tables(numbers) + END + rest.partition(END)[2])
    print_progress(f"written: {PAGE}, {NUMBERS.name}, {STORED.name}")


def _remove_metadata(member):
    """Make archives reproducible."""
    member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
    return member


if __name__ == "__main__":
    main()
