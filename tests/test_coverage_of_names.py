"""Every public op, layer, loss, metric and their like is used by some test.

A name counts as used when a test file, or an expression of tests/reference, spells a dotted name
that leads to the same object: `tf.add` covers `tf.math.add`, for they are one function.
"""

import ast
import functools
import sys
import types
from pathlib import Path

import pytest

import meshflow as tf

TESTS = Path(__file__).parent
# Public namespaces whose every function and class needs a test.
OPS = (
    *("", "math", "linalg", "nn", "image", "signal", "random", "random.experimental"),
    *("bitwise", "strings", "sparse", "ragged", "io", "io.gfile", "debugging", "sets"),
    *("quantization", "audio", "summary", "experimental.numpy", "experimental.numpy.random"),
    "feature_column",
    *("experimental.numpy.linalg", "experimental.numpy.fft"),
)
KERAS = (
    *("backend", "losses", "metrics", "layers", "activations", "initializers", "optimizers"),
    *("optimizers.schedules", "regularizers", "constraints"),
)
SPACES = [*OPS, *(f"keras.{name}" for name in KERAS)]
# Short names that test files and expressions give to modules.
SHORT = {
    "tf": "",
    "meshflow": "",
    "keras": "keras",
    "L": "keras.losses",
    "M": "keras.metrics",
    "R": "keras.regularizers",
    "C": "keras.constraints",
    "A": "keras.activations",
    "I": "keras.initializers",
    "K": "keras.backend",
    "tnp": "experimental.numpy",
    **{name: f"keras.{name}" for name in KERAS},
}
# Names that no test needs to use, each with the reason.
EXEMPT = {}


def lookup(path):
    """Return the object at a dotted path below the package, or None."""
    found = tf
    for part in path.split(".") if path else ():
        try:
            found = getattr(found, part)
        except Exception:
            return None
    return found


def get_dotted_name(node, short):
    """Return the path below the package of an expression such as `tf.math.add`, or None."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in short:
        return None
    return ".".join(filter(None, [short[node.id], *reversed(parts)]))


def paths_in(tree, strings_name_keras=False):
    """Dotted paths that the code in a syntax tree spells."""
    short, nodes = dict(SHORT), list(ast.walk(tree))
    strings = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    # Tests name objects by strings: loss="mse", getattr(layers, name) with "Dense".
    by_string = {f"keras.{name}" for name in KERAS if strings_name_keras}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("meshflow"):
            module = node.module.removeprefix("meshflow").lstrip(".")
            for alias in node.names:
                path = f"{module}.{alias.name}".lstrip(".")
                short[alias.asname or alias.name] = path
                yield path
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if path := get_dotted_name(node.value, short):
                short[node.targets[0].id] = path
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
            by_string.add(get_dotted_name(node.args[0], short))
    for node in nodes:
        if isinstance(node, ast.Attribute) and (path := get_dotted_name(node, short)):
            yield path
    for space in by_string - {None}:
        yield from (f"{space}.{name}".lstrip(".") for name in strings if name.isidentifier())


def reference_expressions():
    """Every expression of the reference files."""
    sys.path.insert(0, str(TESTS / "reference"))
    try:
        for file in sorted((TESTS / "reference").glob("*expressions.py")):
            if not file.name.startswith("generate"):
                yield from getattr(__import__(file.stem), "expressions", list)()
    finally:
        sys.path.pop(0)


@functools.cache
def find_used_objects():
    """Identities of the objects that tests and reference expressions spell."""
    paths = {p for expression in reference_expressions() for p in paths_in(ast.parse(expression))}
    for file in set(TESTS.rglob("*.py")) - {Path(__file__)}:
        keras = bool({"keras", "reference"} & set(file.parts))
        paths.update(paths_in(ast.parse(file.read_text()), strings_name_keras=keras))
    # The objects stay alive, so Python does not reuse their identities.
    return {id(found): found for path in paths if (found := lookup(path)) is not None}


def public(space):
    """Names of the functions and classes of a namespace."""
    module = lookup(space)
    names = getattr(module, "__all__", ()) if module is not None else ()
    for name in names:
        value = getattr(module, name)
        if callable(value) and not isinstance(value, types.ModuleType):
            yield name


@pytest.mark.parametrize("space", [s for s in SPACES if lookup(s) is not None])
def test_every_public_name_is_used_by_a_test(space):
    missing = [
        name
        for name in public(space)
        if f"{space}.{name}".lstrip(".") not in EXEMPT
        and id(getattr(lookup(space), name)) not in find_used_objects()
    ]
    assert not missing, f"tf.{space} has names without a test: {', '.join(sorted(missing))}"


def test_exemptions_are_needed():
    stale = [
        path for path in EXEMPT if lookup(path) is None or id(lookup(path)) in find_used_objects()
    ]
    assert not stale, f"remove from EXEMPT: {', '.join(stale)}"
