"""Test notebook output: tables of objects, and public names in completions."""

import html.parser
import types

import numpy as np
import pytest

import meshflow as tf
from meshflow.environment.html_tables import format_curves, format_table

NAME = "<i>&"


class Reader(html.parser.HTMLParser):
    """Collect the text of cells, and fails for tags that are not closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.cells, self.names = [], [], set()
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.names |= {tag, *dict(attributes)}
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


def make_functional():
    inputs = tf.keras.Input((4,), name="inputs")
    left = tf.keras.layers.Dense(4, name="left")(inputs)
    return tf.keras.Model(inputs, tf.keras.layers.Add(name="sum")([left, inputs]), name=NAME)


def make_history():
    history = tf.keras.callbacks.History()
    history.epoch = [0, 1]
    history.history = {NAME: [2.0, float("nan")], f"val_{NAME}": [1.0, 3.0], "lr": [0.5, 0.25]}
    return history


def make_plan():
    with tf.distribute.shapes_only():
        model = tf.keras.Sequential([tf.keras.Input([64]), tf.keras.layers.Dense(64)], name=NAME)
        model.compile("adam", "mse")
    rows = tf.TensorSpec([32, 64])
    return tf.distribute.plan(model, rows, rows, hardware=tf.distribute.Hardware(2, "8GB"))


OBJECTS = {
    "functional": (make_functional, ["left", "Dense", "(None, 4)", "20", "['inputs[0][0]']"]),
    "sequential": (
        lambda: tf.keras.Sequential([tf.keras.layers.Dense(3, name="head", input_shape=(2,))]),
        ["head", "Dense", "(None, 3)", "9"],
    ),
    "unbuilt": (
        lambda: tf.keras.Sequential([tf.keras.layers.Dense(3, name="head")]),
        ["head", "Dense", "multiple", "0 (unused)"],
    ),
    "dataset": (
        lambda: tf.data.Dataset.from_tensor_slices(({NAME: np.zeros((6, 3))}, ["a"] * 6)).batch(4),
        [f"element[0]['{NAME}']", "(None, 3)", "float64", "element[1]", "(None,)", "string"],
    ),
    "history": (make_history, [NAME, "2", "nan", f"val_{NAME}", "1", "3", "lr", "0.5", "0.25"]),
    "plan": (make_plan, ["data 2"]),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_objects_are_small_tables_of_escaped_text(kind):
    make, cells = OBJECTS[kind]
    text = make()._repr_html_()
    reader = Reader(text)
    assert set(cells) <= set(reader.cells)
    assert len(text) < 4000 and "<table>" in text
    # Nothing is loaded or executed.
    assert not reader.names & {"script", "img", "link", "iframe", "href", "src", "onclick"}
    assert NAME not in text


@pytest.mark.parametrize(
    "dataset, count",
    [
        (tf.data.Dataset.range(1200), "1,200"),
        (tf.data.Dataset.range(3).repeat(), "infinite"),
        (tf.data.Dataset.range(3).filter(lambda x: x > 1), "unknown"),
    ],
)
def test_datasets_show_their_number_of_elements(dataset, count):
    assert f"<p>Number of elements: {count}</p>" in dataset._repr_html_()


def test_tables_escape_styles_and_notes():
    text = format_table(["<"], [[("a", 'color:red"'), "b"]], "c&", notes=["d", "<e>"])
    assert '<td style="color:red&quot;">a</td><td>b</td>' in text
    assert "<caption>c&amp;</caption>" in text and "<p>d<br>&lt;e&gt;</p>" in text


def test_curves_have_gaps_and_dots():
    text = format_curves("loss", {"loss": [1.0, float("inf"), 3.0, 2.0], "val_loss": [2.0] * 4})
    lines = [part.split('"')[1] for part in text.split("<polyline ")[1:]]
    # The first value is a dot at the lower left corner; after the gap, the largest value is at the top.
    assert lines[0] == "6.0,84.0 6.0,84.0" and lines[1].endswith("234.0,45.0")
    assert lines[1].split(",")[1].startswith("6.0") and "1 to 3; dashed: val_loss" in text
    assert "nan" not in format_curves("empty", {"empty": []})


def list_modules():
    modules, found = [tf], {}
    while modules:
        module = modules.pop()
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, types.ModuleType) and value.__name__.startswith("meshflow."):
                if value.__name__ not in found:
                    modules.append(value)
                found[value.__name__] = value
    return found


def test_modules_list_public_names_only():
    modules = list_modules()
    assert len(modules) > 130
    # These modules load some public names on first use; the names of TensorFlow 2 are valid in `compat.v1`.
    lazy = {"meshflow.train", "meshflow.train.experimental", "meshflow.legacy.compat.v1"}
    for name, module in modules.items():
        assert not [n for n in dir(module) if n.startswith("_") and not n.startswith("__")], name
        if name not in lazy:
            assert set(dir(module)) == set(module.__all__), name
    assert "annotations" not in dir(tf) and "Dense" in dir(tf.keras.layers)
