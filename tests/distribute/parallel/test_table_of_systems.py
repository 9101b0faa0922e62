"""The tables of `docs/large_models`: options in them are accepted, and the tests that they name use them."""

import ast
import dataclasses
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs/large_models"
FORMULAS = (FOLDER / "reference.md").read_text()
OTHER_SYSTEMS = (FOLDER / "from_other_systems.md").read_text()
HEAD = "| System | Options | Bytes sent | Bytes held | Test |\n"
# Cells that the table leaves empty.
OPEN = {"m": 4, "n": 2, "tf": tf}


def rows():
    """Yield the cells of each row; "as above" means the files of the previous row."""
    files = []
    tables = [table.partition("\n\n")[0] for table in FORMULAS.split(HEAD)[1:]]
    for line in (line for table in tables for line in table.splitlines()[1:]):
        system, said, sends, holds, tested = (c.strip() for c in line.strip("| ").split(" | "))
        named = re.findall(r"`(.*?)`", tested)
        paths = [ROOT / n if n.startswith("tests/") else Path(__file__).parent / n for n in named]
        files = [*(files if tested.startswith("as above") else []), *paths]
        yield pytest.param(said, [sends, holds], files, id=system)


def choices_of(said, folder):
    """The keyword arguments that a cell shows."""
    found = {}
    for code in re.findall(r"`(.*?)`", said):
        words = re.fullmatch(r"(\w+=.*?),?( .*)?=?", code)
        if words is None or code.endswith("=") or code.startswith(("tf.", "meshflow ")):
            continue
        call = ast.parse(f"dict({code})", mode="eval").body
        for word in call.keywords:
            text = ast.unparse(word.value)
            found[word.arg] = eval(text, {**OPEN, "folder": str(folder)})
    return found


@pytest.mark.parametrize(("said", "cells", "files"), [*rows()])
def test_documented_settings_are_accepted_and_tested(said, cells, files, tmp_path):
    assert all(cells)
    tests = [t for path in files for t in ([*path.rglob("test_*.py")] if path.is_dir() else [path])]
    assert tests and all(re.search(r"^def test_", t.read_text(), re.MULTILINE) for t in tests)
    choices = choices_of(said, tmp_path)
    rules = choices.get("rules", "")
    over = {d for rule in rules.split(",") if rule for d in rule.partition(":")[2].split("+")}
    if "pipeline" in choices:
        over.add("stage")
    if "batch" not in rules:
        choices["rules"] = rules + ", batch:data" * ("pipeline" not in choices or "zero" in choices)
        over.add("data")
    if "sequence" in choices and "sequence:" not in rules:
        choices["rules"] += ", sequence:data"
    names = sorted(over)
    if "plan" in choices:
        assert choices == {"plan": "auto", "rules": choices["rules"]}
    else:
        # Size one: only names and kinds are checked.
        device = [tf.config.list_logical_devices("CPU")[0].name]
        mesh = tf.experimental.dtensor.Mesh(names, np.zeros([1] * len(names), int), [0], device)
        tf.distribute.MeshStrategy(mesh, **choices)
    # A test, or the program or helper beside it, that has each option with its value.
    text = "\n".join(
        p.read_text() for t in tests for p in t.parent.glob("*.py") if belongs_to_test(p, t)
    )
    for name, value in choices.items():
        assert name == "rules" or re.search(rf"\b{name}\b", text), name
        if name not in ("rules", "offload_to", "micro_batches", "compress_after", "plan"):
            value = value.schedule if isinstance(value, tf.distribute.Pipeline) else value
            shown = str(value) if isinstance(value, int) else rf"[\"']{value}[\"']"
            assert re.search(shown, text), (name, value)
    for name in re.findall(r"tf\.[\w.]+", said):
        assert name.rpartition(".")[2] in text, name


def belongs_to_test(path, test):
    """Whether a file is a test's or a program that it runs."""
    return path == test or (not path.name.startswith("test_") and path.stem in test.read_text())


def becomes(head):
    """Return the code in the right column of a table, each piece once."""
    lines = OTHER_SYSTEMS.partition(head)[2].partition("\n\n")[0].splitlines()[1:]
    cells = [line.strip("| ").split(" | ") for line in lines]
    assert all(len(row) == 2 for row in cells)
    return dict.fromkeys(code for _, said in cells for code in re.findall(r"`(.*?)`", said))


# Placeholders for the reader's names, and for omitted parts.
PLACES = {
    "experts": 4,
    "hidden": 8,
    "optimizer": tf.keras.optimizers.SGD(),
    "pattern": "dense.*",
    "tf": tf,
}
LEFT_OUT = {"balance=)": 'balance="auto")', "capacity=)": "capacity=1.25)", "[...]": "[1, 1]"}
SPACES = [tf.keras.layers, tf.keras.optimizers, tf.keras.callbacks, tf.distribute, tf.keras.Model]
SPACES += [tf.keras.mixed_precision]
TAKERS = [tf.distribute.MeshStrategy, tf.distribute.ParallelOptions, tf.distribute.Pipeline]
TAKERS += [
    tf.keras.Model.compile,
    tf.keras.optimizers.Adam,
    tf.keras.mixed_precision.LossScaleOptimizer,
]


@pytest.mark.parametrize("system", ["DeepSpeed", "FairScale", "Colossal-AI"])
def test_translated_settings_exist(system, tmp_path):
    options = {f.name for f in dataclasses.fields(tf.distribute.ParallelOptions)}
    taken = {"dims"}.union(*(inspect.signature(taker).parameters for taker in TAKERS))
    taken |= options | {"global_clipnorm"}
    ours = {name: getattr(tf.distribute, name) for name in tf.distribute.__all__}
    codes = becomes(f"| {system} | Meshflow |\n")
    assert len(codes) > 10
    for code in codes:
        for short, long in {**LEFT_OUT, "topk:k": "topk:2"}.items():
            code = code.replace(short, long)
        names = {**PLACES, "folder": str(tmp_path), **ours}
        if re.fullmatch(r"\w+=", code):
            assert code[:-1] in taken, code
        elif re.match(r"\w+=", code):
            given = eval(f"dict({code})", names)
            assert {*given} <= taken, code
            mine = {k: v for k, v in given.items() if k in options - {"zero_over"}}
            offload = {"offload": "optimizer"} if "offload_to" in mine else {}
            tf.distribute.ParallelOptions(**{**offload, **mine})
        elif re.match(r"[A-Z]\w+\(|tf\..*\)$", code):
            eval(code, {**vars(tf.keras.layers), **names})
        elif code.startswith("tf."):
            eval(code.partition("(")[0], names)
        elif re.fullmatch(r"[A-Za-z]\w+", code) and code not in ("mixed_float8", "gain"):
            found = [space for space in (*SPACES, *TAKERS) if hasattr(space, code)]
            assert found or code in taken, code
