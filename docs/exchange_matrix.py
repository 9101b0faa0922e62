"""Measures which files TensorFlow, tf-keras, Keras 3, LiteRT, ONNX Runtime and Meshflow read of each other.

    MESHFLOW_PEERS_PYTHON=... python docs/exchange_matrix.py

Every kind of model of `tests/reference/exchange_cases.py` is written in every format by every program and read by the
others. The largest differences go to `tests/reference/exchange.json`, the table made of it into `docs/exchange.md`, and
what TensorFlow wrote to `tests/reference/exchange.tar.xz`, which tests read where it is not installed.
"""

import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "tests" / "reference"
NUMBERS = REFERENCE / "exchange.json"
STORED = REFERENCE / "exchange.tar.xz"
PAGE = ROOT / "docs" / "exchange.md"
BEGIN, END = "<!-- exchange_matrix.py: begin -->\n", "<!-- exchange_matrix.py: end -->"
PYTHON = os.environ.get("MESHFLOW_PEERS_PYTHON", str(ROOT / ".venv-peers" / "bin" / "python"))
PEERS = {"tf-keras": "1", "keras3": ""}
TITLES = {"tf-keras": "tf-keras", "keras3": "Keras 3"}
FORMS = {
    "checkpoint": "checkpoint",
    "saved_model": "SavedModel",
    "keras": "`.keras`",
    "weights": "`.weights.h5`",
    "h5": "`.h5`",
}

sys.path.insert(0, str(REFERENCE))
import exchange_cases as cases  # noqa: E402
import exchange_files as files  # noqa: E402

import meshflow as tf  # noqa: E402


def run(program, task, folder):
    """A task of `exchange_files.py` in another program; what it prints."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "XLA_FLAGS")}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": PEERS[program]}
    command = [PYTHON, str(REFERENCE / "exchange_files.py"), task, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{program} could not {task}: {done.stderr[-3000:]}")
    return done.stdout


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
    if (program, form) == ("keras3", "keras"):  # it does not take the optimizer's state
        found = {key: value for key, value in found.items() if not key.startswith("after")}
    if "error" in found:
        raise ValueError(str(found["error"]))
    return files.difference(found, expected(folder, kind))


def litert(model, kind):
    """The largest difference in LiteRT, for all rows and for one."""
    content = tf.lite.TFLiteConverter.from_keras_model(model).convert()
    call = tf.lite.Interpreter(model_content=content).get_signature_runner("serving_default")
    return _deployed(
        model, kind, sorted(call.get_input_details()), lambda given: list(call(**given).values())
    )


def onnx(model, kind):
    """The largest difference in ONNX Runtime, for all rows and for one."""
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
    return [form for form in files.FORMATS if os.path.exists(there(form))]


def measured(folder):
    """All differences: `in` by program, kind and format; `out` the same; `deployed` by runtime and kind."""
    here, found = pathlib.Path(folder) / "meshflow", {"in": {}, "out": {}, "deployed": {}}
    for program in PEERS:
        place = pathlib.Path(folder) / program
        place.mkdir(parents=True)
        run(program, "write", place)
        found["in"][program] = {
            kind: {form: attempt(read_here, place, kind, form) for form in stored_by(place, kind)}
            for kind in cases.KINDS
        }
    here.mkdir()
    models = {kind: cases.made(tf, kind) for kind in cases.KINDS}
    for runtime in (litert, onnx):
        found["deployed"][runtime.__name__] = {
            kind: attempt(runtime, model, kind) for kind, model in models.items()
        }
    not_written = files.write_all(tf, here)
    if not_written:
        raise RuntimeError(f"Not written: {not_written}")
    for program in PEERS:
        run(program, "read", here)
        found["out"][program] = {
            kind: {
                form: attempt(read_there, here, program, kind, form)
                for form in stored_by(here, kind)
            }
            for kind in cases.KINDS
        }
    return found


def table(numbers):
    """The numbers as the tables of the page."""
    lines = []
    for direction, title in (
        ("in", "Written by {}, read here"),
        ("out", "Written here, read by {}"),
    ):
        for program in PEERS:
            rows = numbers[direction][program]
            lines += ["", title.format(TITLES[program]) + ":", ""]
            lines += [
                f"| model | {' | '.join(FORMS.values())} |",
                "| --- " * (len(FORMS) + 1) + "|",
            ]
            lines += [
                f"| {k} | {' | '.join(_cell(rows[k].get(f)) for f in FORMS)} |" for k in cases.KINDS
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
    with tempfile.TemporaryDirectory() as folder:
        numbers = measured(folder)
        with tarfile.open(STORED, "w:xz") as archive:
            for program in PEERS:
                archive.add(f"{folder}/{program}", program, filter=_without_date)
    NUMBERS.write_text(json.dumps(numbers, indent=1) + "\n")
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(before + BEGIN + table(numbers) + END + rest.partition(END)[2])


def _without_date(member):
    member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
    return member


if __name__ == "__main__":
    main()
