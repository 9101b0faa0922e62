"""Every public name of TensorFlow is available, or refused with a reason."""

import importlib.util
from pathlib import Path

import pytest

import meshflow as tf

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location(
    "tensorflow_names", ROOT / "docs" / "tensorflow_names.py"
)
names = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(names)
# Names that other changes add: the service of tf.data.
PENDING = ("data.experimental.service",)


@pytest.fixture(scope="module")
def record():
    return names.read_record()


def test_no_name_is_missing(record):
    missing = [
        f"{n.path}: {names.find(n.path)[1]}"
        for n in record
        if names.find(n.path)[0] == "missing"
        and not n.path.removeprefix("compat.v1.").startswith(PENDING)
    ]
    assert not missing, "implement these names, or refuse them in core/runtime/unavailable_names.py"


def test_refused_names_have_reasons(record):
    refused = [n.path for n in record if names.find(n.path)[0] == "refused"]
    assert 1000 < len(refused) < 1400
    for path in refused:
        message = names.find(path)[1]
        assert message.startswith("tf."), message
        assert len(message.partition(": ")[2]) > 20, message


def test_refused_names_are_names_of_tensorflow(record):
    known = {n.path for n in record} | {"estimator", "compat.v1.estimator"}
    from meshflow.core.runtime.unavailable_names import REASONS

    other = [p for p in REASONS if p not in known and f"compat.v1.{p}" not in known]
    assert not other


def test_page_is_current(record):
    differences = list(names.list_differences(record))
    found = {path for kind, path, _ in differences if kind == "arguments"}
    page = names.PAGE.read_text()
    assert all(f"`{path}`" in page for path in found), "run docs/tensorflow_names.py"
    assert not [p for p in ("tf.queue", "tf.raw_ops", "tf.linalg") if f"| `{p}` |" not in page]


def test_missing_names_are_no_attributes():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tf.nothing
    with pytest.raises(NotImplementedError, match=r"tf\.io\.decode_proto: "):
        _ = tf.io.decode_proto
    assert not hasattr(tf.compat.v1, "ConditionalAccumulator")
