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
    "tf.keras.Model(inputs=[], outputs=[])": "Model",
    "tf.keras.Sequential([])": "Sequential",
    "tf.keras.Sequential([]).fit(1)": "History",
    "tf.keras.optimizers.Adam()": "Adam",
    "tf.keras.losses.Loss": "type[Loss]",
    "tf.data.Dataset.range(3).batch(2)": "Dataset",
    "tf.Variable(1.0) + 1": "Tensor",
    "tf.constant(1.0) * 2": "Tensor",
    "tf.sin": "Elementwise",
    "tf.sin(1.0)": "Tensor",
    "tf.reduce_sum": "Reduction",
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
MOST = {"nothing is known": 1, "arguments are not": 3, "the result is not": 130}


@pytest.fixture(scope="module")
def types_of():
    """The types that pyright finds for expressions."""
    pytest.importorskip("basedpyright", reason="pyright")

    def find(expressions, folder):
        file = folder / "program.py"
        lines = [f"reveal_type({e})" for e in expressions]
        file.write_text(PROGRAM + "\n".join(lines))
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

    return find


def test_names_lead_to_their_classes_and_signatures(types_of, tmp_path):
    assert types_of(list(SEEN), tmp_path) == SEEN


def test_300_names_are_seen_as_they_were(types_of, tmp_path):
    """A changed type is written to the file by hand, or it is a mistake."""
    stored = json.loads((Path(__file__).parent / "reference" / "editors.json").read_text())
    assert len(stored) == 300
    assert types_of(list(stored), tmp_path) == stored


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


def test_ever_fewer_names_are_unknown(types_of, tmp_path):
    names = public_names()
    found = types_of(names, tmp_path)
    assert len(names) > 2000 and len(found) > 0.97 * len(names)
    unknown = {
        "nothing is known": [n for n, t in found.items() if t == "Any"],
        "arguments are not": [n for n, t in found.items() if t.startswith("(...)")],
        "the result is not": [
            n for n, t in found.items() if t.endswith("-> Any") and not t.startswith("(...)")
        ],
    }
    for kind, some in unknown.items():
        assert len(some) <= MOST[kind], f"{kind}: {len(some)} names, {MOST[kind]} before: {some}"
