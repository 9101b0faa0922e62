"""Docstrings state the shapes of layers, and the formulas of optimizers, schedules, losses and metrics."""

import inspect
import re
import sys
from pathlib import Path

import pytest

import meshflow as tf

sys.path.insert(0, str(Path(__file__).parent / "reference"))
from layer_cases import CASES

sys.path.pop(0)


def classes(space):
    """The classes of a namespace, each once."""
    found = {id(v): v for name in space.__all__ if inspect.isclass(v := getattr(space, name))}
    return sorted(found.values(), key=lambda c: c.__name__)


def section(thing, title):
    """Return the text of a section of a docstring, empty if it is missing."""
    text = inspect.getdoc(thing) or ""
    found = re.search(rf"^{title}:\n((?:[ \t]+.*\n|\n)+)", text + "\n", re.MULTILINE)
    return found[1].strip() if found else ""


LAYERS = [c for c in classes(tf.keras.layers) if issubclass(c, tf.keras.layers.Layer)]
LAYERS += [c for c in classes(tf.keras.layers.experimental) if c not in LAYERS]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda c: c.__name__)
def test_layers_state_their_shapes(layer):
    assert section(layer, "Input shape") and section(layer, "Output shape")


def rank(text):
    """Return the number of dimensions of the first shape in a text; None if it is unspecified."""
    shape = re.search(r"\(([^)]*)\)", text)
    return (
        None if shape is None or "..." in shape[1] or "*" in shape[1] else shape[1].count(",") + 1
    )


@pytest.mark.parametrize("name, arguments, shape", CASES, ids=lambda v: str(v)[:20])
def test_shapes_are_those_of_the_layer(name, arguments, shape):
    layer = getattr(tf.keras.layers, name)
    x = tf.keras.Input(shape)
    y = layer(**arguments)(x)
    assert rank(section(layer, "Input shape")) in (None, len(x.shape))
    stated = section(layer, "Output shape")
    if stated.startswith("The same"):
        assert y.shape == x.shape
    elif not arguments.get("keepdims"):
        assert rank(stated) in (None, len(y.shape))


OPTIMIZERS = classes(tf.keras.optimizers)
SCHEDULES = classes(tf.keras.optimizers.schedules)
LOSSES = classes(tf.keras.losses)
METRICS = classes(tf.keras.metrics)
FUNCTIONS = [
    f
    for f in {id(f): f for f in vars(tf.keras.losses).values() if inspect.isfunction(f)}.values()
    if [*inspect.signature(f).parameters][:2] == ["y_true", "y_pred"]
]
# Names without a formula: bases, wrappers and enumerations.
WITHOUT = {
    *("Optimizer", "OptaxOptimizer", "LearningRateSchedule"),
    *("Loss", "LossFunctionWrapper", "Reduction", "Metric", "MeanMetricWrapper"),
}
WITH_FORMULA = [
    thing
    for thing in (*OPTIMIZERS, *SCHEDULES, *LOSSES, *FUNCTIONS, *METRICS)
    if thing.__name__ not in WITHOUT
]
# Functions, and numbers that are called by their name, in formulas.
KNOWN = {
    *("sqrt", "log", "exp", "cos", "cosh", "sign", "min", "max", "sum", "mean", "argmax", "clip"),
    *("count", "if", "else", "and", "pi"),
}


def get_test_id(thing):
    """Where a test shows it."""
    return f"{thing.__module__.rpartition('.')[2]}.{thing.__name__}"


@pytest.mark.parametrize("thing", WITH_FORMULA, ids=get_test_id)
def test_formula_with_every_symbol(thing):
    text = section(thing, "Formula")
    # Names of other objects are no formulas.
    formulas = re.findall(r"`((?!tf\.)[^`]*)`", text)
    assert any(re.search(r"[-+*/=<>|(\[]", formula) for formula in formulas), "no formula"
    words = set(re.findall(r"\b[a-zA-Z]\w*", " ".join(formulas)))
    prose = re.sub(r"`[^`]*`", lambda m: m[0] if re.fullmatch(r"`\w+`", m[0]) else "", text)
    arguments = set(inspect.signature(thing).parameters)
    missing = words - KNOWN - arguments - set(re.findall(r"\b[a-zA-Z]\w*", prose))
    assert not missing, f"symbols without a word: {sorted(missing)}"


@pytest.mark.parametrize("optimizer", [o for o in OPTIMIZERS if o.__name__ not in WITHOUT])
def test_optimizers_name_their_paper(optimizer):
    assert re.search(r"arXiv:\d{4}\.\d{4,5}|\b(19|20)\d\d\b", inspect.getdoc(optimizer))


OPS = {
    id(op): (f"tf.{space}.{name}".replace("..", "."), op)
    for space in (
        "",
        "nn",
        "math",
        "linalg",
        "image",
        "signal",
        "audio",
        "random",
        "strings",
        "sets",
        "sparse",
    )
    for name in getattr(tf, space, tf).__all__
    if inspect.isroutine(op := getattr(getattr(tf, space, tf), name)) or hasattr(op, "__wrapped__")
    if (getattr(op, "__module__", None) or "").startswith("meshflow.ops")
}
SHAPE = re.compile(
    r"\b(shapes?|sizes?|scalars?|dimensions?)\b|\[[^\]]*\]|\((\.\.\.|\w+),[^)]*\)|arguments as"
)
# Ops that return no tensor, or do not change one; and those without documentation of it. This list
# may only shrink.
WITHOUT_SHAPES = {
    *("tf.Assert", "tf.assert_equal", "tf.assert_greater", "tf.assert_less"),
    *("tf.get_static_value", "tf.group", "tf.no_op"),
    *("tf.random.get_global_generator", "tf.random.set_global_generator"),
}


@pytest.mark.parametrize("name, op", OPS.values(), ids=lambda v: v if isinstance(v, str) else "")
def test_ops_state_their_shapes(name, op):
    text = (inspect.getdoc(op) or "").partition("Example:")[0]
    assert bool(SHAPE.search(text)) != (name in WITHOUT_SHAPES)
