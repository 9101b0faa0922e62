"""Test the types of public names in editors and type checkers, by pyright."""

import collections
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

import meshflow as tf

pytestmark = pytest.mark.long
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
    "tf.data.Dataset.range(3).batch(2)": "Dataset[Tensor]",
    "tf.Variable(1.0) + 1": "Tensor",
    "tf.constant(1.0) * 2": "Tensor",
    "tf.sin": "ElementwiseOp",
    "tf.sin(1.0)": "Tensor",
    "tf.reduce_sum": "ReductionOp",
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
UNMODIFIED = """
import keras
import tensorflow as tf
import tensorflow.compat.v1 as tf1
import tensorflow.keras.backend as K
from tensorflow.data import Dataset
from tensorflow.keras.layers import LSTM
from tf_keras.models import Sequential

reveal_type(tf.constant(1.0) * K.epsilon())
reveal_type(tf.keras.layers.Dense(1))
reveal_type(LSTM)
reveal_type(Dataset.range(3))
reveal_type(Sequential)
reveal_type(keras.layers.Dense(1))
tf1.placeholder(tf.float32)
tf.train.Feature()
keras.layers.Dense(1, unit=2)
"""
# Public names with unknown signatures or results. These numbers may only fall, except for functions
# that return the result of a given function. `tf.keras.utils.FeatureSpace` uses layers, which
# import `keras.utils`, so it is loaded on first use.
MOST = {"nothing is known": 2, "arguments are not": 3, "the result is not": 34}


HERE = Path(__file__).parent
STORED = json.loads((HERE / "reference" / "editors.json").read_text())
# Types of 55 expressions, and 87 wrong calls with whether the stubs `types-tensorflow` 2.18 for TensorFlow detect them.
# Pyright's standard mode was used for both.
SAMPLE = json.loads((HERE / "reference" / "editor_samples.json").read_text())


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


def load_hook():
    """Return the build hook of meshflow-as-tensorflow."""
    path = HERE.parent / "packaging" / "as_tensorflow" / "hatch_build.py"
    spec = importlib.util.spec_from_file_location("as_tensorflow_hook", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def findings(tmp_path_factory):
    """Return pyright's results of one run: types by expression, and lines with errors by file."""
    pytest.importorskip("basedpyright", reason="pyright")
    folder = tmp_path_factory.mktemp("editors")
    expressions = {
        "program.py": list(dict.fromkeys([*SEEN, *STORED, *public_names()])),
        "hovers.py": list(SAMPLE["hovers"]),
    }
    starts = {"program.py": PROGRAM, "hovers.py": "\n".join(SAMPLE["hovers_start"]) + "\n"}
    for name, some in expressions.items():
        reveals = "\n".join(f"reveal_type({e})" for e in some)
        (folder / name).write_text(starts[name] + reveals)
    (folder / "mistakes.py").write_text("\n".join([*SAMPLE["mistakes_start"], *SAMPLE["mistakes"]]))
    for script in (HERE / "editors").glob("*.py"):
        shutil.copy(script, folder)
        unmodified = re.sub(r"\b(import|from) meshflow\b", r"\1 tensorflow", script.read_text())
        (folder / f"tensorflow_{script.name}").write_text(unmodified)
    (folder / "tensorflow_names.py").write_text(UNMODIFIED)
    stubs = tmp_path_factory.mktemp("stubs")
    load_hook().write_stubs(stubs)
    sources = str(Path(tf.__file__).parent.parent)
    config = {"typeCheckingMode": "standard", "extraPaths": [sources, str(stubs)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
        + ["--project", str(folder)],
        capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    types_of, errors = {}, collections.defaultdict(dict)
    for said in json.loads(done.stdout)["generalDiagnostics"]:
        name, line = Path(said["file"]).name, said["range"]["start"]["line"]
        match = re.fullmatch(r'Type of ".*" is "(.*)"', said["message"], re.DOTALL)
        if match and name == "tensorflow_names.py":
            types_of[name, line] = match[1]
        elif match:
            expression = expressions[name][line - starts[name].count("\n")]
            # All samples have different types.
            types_of[expression if name == "program.py" else (expression,)] = match[1]
        elif said["severity"] == "error":
            errors[name].setdefault(line, said["message"])
    return types_of, errors


@pytest.fixture
def types_of(findings):
    return findings[0]


@pytest.mark.parametrize("script", sorted(p.name for p in (HERE / "editors").glob("*.py")))
def test_correct_programs_have_no_errors(findings, script):
    assert findings[1].get(script, {}) == {}


@pytest.mark.parametrize("script", sorted(p.name for p in (HERE / "editors").glob("*.py")))
def test_unmodified_programs_have_no_errors(findings, script):
    assert findings[1].get(f"tensorflow_{script}", {}) == {}


def test_types_of_tensorflows_names(findings):
    types_of, errors = findings
    assert [t for key, t in types_of.items() if key[0] == "tensorflow_names.py"] == [
        *("Tensor", "Dense", "type[LSTM]", "Dataset[Tensor]", "type[Sequential]", "Dense")
    ]
    # The last line calls a function with a wrong argument.
    assert list(errors["tensorflow_names.py"]) == [UNMODIFIED.rstrip().count("\n")]


def test_samples_have_useful_types(types_of):
    """A changed type is written to the file by hand, or it is a mistake."""
    found = {expression: types_of.get((expression,)) for expression in SAMPLE["hovers"]}
    assert found == SAMPLE["hovers"]
    # The element types of NumPy's arrays are unknown.
    texts = [
        re.sub(r"ndarray\[tuple\[Any, ...\], dtype\[Any\]\]", "ndarray", t) for t in found.values()
    ]
    useful = [t for t in texts if not re.search(r"\b(Any|Unknown)\b", t)]
    assert len(texts) == 55 and len(useful) >= 50


def test_wrong_calls_are_errors(findings):
    start, calls = len(SAMPLE["mistakes_start"]), list(SAMPLE["mistakes"])
    errors = findings[1]["mistakes.py"]
    assert not [line for line in errors if line < start]
    missed = [call for i, call in enumerate(calls, start) if i not in errors]
    assert missed == SAMPLE["missed"]
    assert len(calls) - len(missed) >= sum(SAMPLE["mistakes"].values())


def test_names_resolve_to_classes_and_signatures(types_of):
    assert {expression: types_of.get(expression) for expression in SEEN} == SEEN


def test_types_of_300_names_are_unchanged(types_of):
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
