"""Measures which files TensorFlow, tf-keras, Keras 3, LiteRT, ONNX Runtime and Meshflow read of each other.

    python docs/exchange_matrix.py

TensorFlow is installed into an environment under `build/exchange`, unless MESHFLOW_PEERS_PYTHON names one's Python. What is
measured is kept there: a run that was stopped goes on where it was, and `--again` begins anew (`--again keras3` with
what concerns one of tf-keras, keras3, litert and onnx). About ten minutes on two cores.

Every kind of model of `tests/reference/exchange_cases.py` is written in every format by every program and read by the
others. The largest differences go to `tests/reference/exchange.json`, the table made of it into `docs/exchange.md`, and
what TensorFlow wrote to `tests/reference/exchange.tar.xz`, which tests read where it is not installed.
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
PLACE = ROOT / "build" / "exchange"
PACKAGES = ("tensorflow-cpu==2.21.*", "tf-keras==2.21.*", "keras==3.15.*")
PYTHON = os.environ.get("MESHFLOW_PEERS_PYTHON", str(PLACE / "tensorflow" / "bin" / "python"))
PEERS = {"tf-keras": "1", "keras3": ""}
TITLES = {"tf-keras": "tf-keras", "keras3": "Keras 3"}
FORMS = {
    "checkpoint": "checkpoint",
    "saved_model": "SavedModel",
    "keras": "`.keras`",
    "weights": "`.weights.h5`",
    "h5": "`.h5`",
}
# Written here with keras_version=3.
FORMS_OF_KERAS_3 = {"keras_of_3": "`.keras`, 3", "h5_of_3": "`.h5`, 3"}

sys.path.insert(0, str(REFERENCE))
import exchange_cases as cases  # noqa: E402
import exchange_files as files  # noqa: E402

import meshflow as tf  # noqa: E402


def prepare():
    """Makes the environment of TensorFlow, if it is not there."""
    if os.access(PYTHON, os.X_OK):
        return
    folder = pathlib.Path(PYTHON).parent.parent
    say(f"installing {', '.join(PACKAGES)} into {folder}")
    made = folder.with_name(folder.name + ".part")
    shutil.rmtree(made, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", made], check=True)
    subprocess.run([made / "bin" / "python", "-m", "pip", "install", "-q", *PACKAGES], check=True)
    made.rename(folder)


STARTED = time.monotonic()


def say(text):
    """A line of progress."""
    minutes, seconds = divmod(int(time.monotonic() - STARTED), 60)
    print(f"{minutes:3d}:{seconds:02d}  {text}", flush=True)


def run(program, task, folder):
    """A task of `exchange_files.py` in another program, which goes on where it was stopped."""
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
            say(f"{TITLES[program]}: {line.strip()}")
        if process.wait():
            errors.seek(0)
            raise RuntimeError(f"{program} could not {task}: {errors.read()[-3000:]}")


def attempt(measure, *args):
    """A difference, or the error that came instead, as text."""
    try:
        return measure(*args)
    except Exception as error:  # the table says which
        return f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"


def expected(folder, kind):
    """What the program that wrote a model had from it."""
    with np.load(f"{folder}/{kind}.npz") as file:
        return dict(file)


def read_here(folder, kind, form):
    """The difference of what is read here to what another program had."""
    return files.difference(files.read(tf, folder, kind, form), expected(folder, kind))


def read_there(folder, program, kind, form):
    """The difference of what another program read to what was here."""
    with np.load(f"{folder}/{kind}.{form}.{program}.npz") as file:
        found = dict(file)
    if program == "keras3" and form in ("keras", "h5_of_3"):  # without the optimizer's state
        found = {key: value for key, value in found.items() if not key.startswith("after")}
    if "error" in found:
        raise ValueError(str(found["error"]))
    return files.difference(found, expected(folder, kind))


def litert(kind):
    """The largest difference in LiteRT, for all rows and for one."""
    model = cases.made(tf, kind)
    content = tf.lite.TFLiteConverter.from_keras_model(model).convert()
    call = tf.lite.Interpreter(model_content=content).get_signature_runner("serving_default")
    return _deployed(
        model, kind, sorted(call.get_input_details()), lambda given: list(call(**given).values())
    )


def onnx(kind):
    """The largest difference in ONNX Runtime, for all rows and for one."""
    model = cases.made(tf, kind)
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        model.export(f"{folder}/model.onnx", format="onnx")
        session = onnxruntime.InferenceSession(
            f"{folder}/model.onnx", providers=["CPUExecutionProvider"]
        )
    names = [given.name for given in session.get_inputs()]
    return _deployed(model, kind, names, lambda given: session.run(None, given))


def _deployed(model, kind, names, call):
    wanted = cases.outputs(tf, model, kind)
    data = dict(zip(names, cases.data(kind), strict=True))
    if len(names) > 1:  # by name, whatever the order
        data = {name: cases.data(kind)[0 if "zeta" in name else 1] for name in names}
    worst = 0.0
    for rows in (None, 1):
        found = call({name: x[:rows] for name, x in data.items()})
        for y in found:
            worst = max(
                worst,
                min(
                    float(np.abs(y - w[:rows]).max()) for w in wanted if w.shape[1:] == y.shape[1:]
                ),
            )
    return worst


def stored_by(folder, kind):
    """The formats in which a model lies in a folder."""
    there = lambda form: (
        files.place(folder, kind, form) + (".index" if form == "checkpoint" else "")
    )
    forms = (*files.FORMATS, *files.OF_KERAS_3)
    return [form for form in forms if os.path.exists(there(form))]


class Numbers:
    """What was measured, kept in a file as it comes.

    Attributes:
      found: by direction (`in`, `out`, `deployed`), program or runtime, kind, and format.
    """

    def __init__(self, folder):
        self._file = pathlib.Path(folder) / "numbers.json"
        self.found = json.loads(self._file.read_text()) if self._file.exists() else {}

    def add(self, direction, program, kind, measure, *args):
        """Measures what is not there yet."""
        kinds = self.found.setdefault(direction, {}).setdefault(program, {})
        if kind in kinds:
            return
        value = kinds[kind] = measure(*args)
        self.write()
        cells = value.items() if isinstance(value, dict) else [(program, value)]
        say(f"{kind} {direction}, {program}: {', '.join(f'{f} {_cell(v)}' for f, v in cells)}")

    def write(self):
        """Writes the file; one that is stopped meanwhile leaves the one before."""
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps(self.found, indent=1) + "\n")
        part.replace(self._file)


def by_form(forms, measure, *args):
    """A difference for each format."""
    return {form: attempt(measure, *args, form) for form in forms}


def measured(folder):
    """All differences: `in` by program, kind and format; `out` the same; `deployed` by runtime and kind."""
    here, numbers = pathlib.Path(folder) / "meshflow", Numbers(folder)
    for program in PEERS:
        place = pathlib.Path(folder) / program
        place.mkdir(parents=True, exist_ok=True)
        run(program, "write", place)
        for kind in cases.KINDS:
            forms = stored_by(place, kind)
            numbers.add("in", program, kind, by_form, forms, read_here, place, kind)
    for runtime in (litert, onnx):
        for kind in cases.KINDS:
            numbers.add("deployed", runtime.__name__, kind, attempt, runtime, kind)
    here.mkdir(exist_ok=True)
    not_written = files.write_all(tf, here)
    if not_written:
        raise RuntimeError(f"Not written: {not_written}")
    for program in PEERS:
        run(program, "read", here)
        for kind in cases.KINDS:
            forms = [f for f in stored_by(here, kind) if f in _forms("out", program)]
            numbers.add("out", program, kind, by_form, forms, read_there, here, program, kind)
    return numbers.found


def forget(folder, which):
    """Leaves out what was measured of programs, or everything."""
    folder = pathlib.Path(folder)
    if "all" in which:
        for name in ("meshflow", *PEERS):
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / "numbers.json").unlink(missing_ok=True)
    numbers = Numbers(folder)
    for program in which:
        for path in (folder / "meshflow").glob(f"*.{program}.npz"):
            path.unlink()
        shutil.rmtree(folder / program, ignore_errors=program in ("all", "litert", "onnx"))
        for kinds in numbers.found.values():
            kinds.pop(program, None)
    numbers.write()


def table(numbers):
    """The numbers as the tables of the page."""
    lines = []
    for direction, title in (
        ("in", "Written by {}, read here"),
        ("out", "Written here, read by {}"),
    ):
        for program in PEERS:
            rows, forms = numbers[direction][program], _forms(direction, program)
            lines += ["", title.format(TITLES[program]) + ":", ""]
            lines += [
                f"| model | {' | '.join(forms.values())} |",
                "| --- " * (len(forms) + 1) + "|",
            ]
            lines += [
                f"| {k} | {' | '.join(_cell(rows[k].get(f)) for f in forms)} |" for k in cases.KINDS
            ]
    lines += [
        "",
        "Converted here, run by:",
        "",
        "| model | LiteRT | ONNX Runtime |",
        "| --- | --- | --- |",
    ]
    both = numbers["deployed"]
    lines += [
        f"| {k} | {_cell(both['litert'][k])} | {_cell(both['onnx'][k])} |" for k in cases.KINDS
    ]
    return "\n".join(lines[1:]) + "\n"


def _forms(direction, program):
    """Titles of the formats between Meshflow and a program."""
    return FORMS | (FORMS_OF_KERAS_3 if (direction, program) == ("out", "keras3") else {})


def _cell(value):
    if value is None:
        return "-"
    return (
        "no"
        if isinstance(value, str)
        else f"{value:.0e}".replace("e-0", "e-").replace("0e+00", "0")
    )


def main():
    """Measures, and writes numbers, table and stored files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", default=PLACE / "work", help="where files and numbers are kept")
    choices = ["all", *PEERS, "litert", "onnx"]
    parser.add_argument("--again", nargs="?", const="all", choices=choices, help="measured anew")
    options = parser.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    if options.again:
        forget(options.folder, [options.again])
    prepare()
    numbers = measured(options.folder)
    with tarfile.open(STORED, "w:xz") as archive:
        for program in PEERS:
            archive.add(f"{options.folder}/{program}", program, filter=_without_date)
    NUMBERS.write_text(json.dumps(numbers, indent=1) + "\n")
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(before + BEGIN + table(numbers) + END + rest.partition(END)[2])
    say(f"written: {PAGE}, {NUMBERS.name}, {STORED.name}")


def _without_date(member):
    member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
    return member


if __name__ == "__main__":
    main()
