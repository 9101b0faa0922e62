"""What editors and type checkers see of the public names, by pyright."""

import json
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import meshflow as tf

SEEN = {
    "tf.keras.layers.Dense": "type[Dense]",
    "tf.keras.layers.Dense(3)": "Dense",
    "tf.keras.layers.MaxPool2D(3)": "MaxPooling2D",
    "tf.keras.Model(inputs=[], outputs=[])": "Model",
    "tf.keras.Sequential([])": "Sequential",
    "tf.keras.Sequential([]).fit(1)": "History",
    "tf.keras.optimizers.Adam()": "Adam",
    "tf.keras.optimizers.get('adam')": "Optimizer",
    "tf.keras.losses.Loss": "type[Loss]",
    "tf.data.Dataset.range(3).batch(2)": "Dataset",
    "tf.Variable(1.0) + 1": "Tensor",
    "tf.constant(1.0) * 2": "Tensor",
    "tf.sin": "Elementwise",
    "tf.sin(1.0)": "Tensor",
    "tf.reduce_sum": "Reduction",
    "tf.linalg.svd([[1.0]])": "tuple[Tensor, Tensor, Tensor]",
    "tf.cond(True, lambda: 1, lambda: 2)": "int",
    "tf.signal.fft([1.0])": "Tensor",
    "tf.train.Checkpoint": "type[Checkpoint]",
    "tf.distribute.MirroredStrategy": "type[MirroredStrategy]",
    "tf.GradientTape": "type[GradientTape]",
    "plain": "Polymorphic[(x: int, y: float = 1), Tensor]",
    "compiled": "Polymorphic[(x: int, y: float = 1), Tensor]",
    "Owner().method": "Polymorphic[(x: int), Tensor]",
}
PROGRAM = """
import meshflow as tf

@tf.function
def plain(x: int, y: float = 1.0) -> tf.Tensor: return tf.constant(x)

@tf.function(jit_compile=True)
def compiled(x: int, y: float = 1.0) -> tf.Tensor: return tf.constant(x)

class Owner:
    @tf.function
    def method(self, x: int) -> tf.Tensor: return tf.constant(x)

"""
# Public names of which the signature, or the result, is not known. These numbers may only fall, but for functions
# whose result is what the functions given to them return.
# `tf.keras.utils.FeatureSpace` uses layers, which import `keras.utils`, so it is loaded on first use.
MOST = {"nothing is known": 2, "arguments are not": 3, "the result is not": 34}


STORED = json.loads((Path(__file__).parent / "reference" / "editors.json").read_text())


def public_names():
    names, seen = [], set()

    def walk(module, path):
        for name in module.__all__ if hasattr(module, "__all__") else ():
            value = getattr(module, name)
            if not isinstance(value, types.ModuleType):
                names.append(f"{path}.{name}")
            elif id(value) not in seen and name != "compat":
                seen.add(id(value))
                walk(value, f"{path}.{name}")

    walk(tf, "tf")
    return [n for n in names if not n.rpartition(".")[2].startswith("_")]


@pytest.fixture(scope="module")
def types_of(tmp_path_factory):
    """The types that pyright finds, in one run, for every expression asked for here."""
    pytest.importorskip("basedpyright", reason="pyright")
    file = tmp_path_factory.mktemp("editors") / "program.py"
    expressions = list(dict.fromkeys([*SEEN, *STORED, *public_names()]))
    file.write_text(PROGRAM + "\n".join(f"reveal_type({e})" for e in expressions))
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", str(file)],
        capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    first = PROGRAM.count("\n")
    found = {}
    for said in json.loads(done.stdout)["generalDiagnostics"]:
        match = re.fullmatch(r'Type of ".*" is "(.*)"', said["message"], re.DOTALL)
        if match:
            found[expressions[said["range"]["start"]["line"] - first]] = match[1]
    return found


def test_names_lead_to_their_classes_and_signatures(types_of):
    assert {expression: types_of.get(expression) for expression in SEEN} == SEEN


def test_300_names_are_seen_as_they_were(types_of):
    """A changed type is written to the file by hand, or it is a mistake."""
    assert len(STORED) == 300
    assert {expression: types_of.get(expression) for expression in STORED} == STORED


def test_ever_fewer_names_are_unknown(types_of):
    names = public_names()
    found = {name: types_of[name] for name in names if name in types_of}
    assert len(names) > 2000 and len(found) > 0.97 * len(names)
    unknown = {
        "nothing is known": [n for n, t in found.items() if t in ("Any", "Unknown")],
        "arguments are not": [n for n, t in found.items() if t.startswith("(...)")],
        "the result is not": [
            n for n, t in found.items() if t.endswith("-> Any") and not t.startswith("(...)")
        ],
    }
    for kind, some in unknown.items():
        assert len(some) <= MOST[kind], f"{kind}: {len(some)} names, {MOST[kind]} before: {some}"
