"""TensorFlow Serving's JSON as arrays, and back."""

import sys

import numpy as np
import pytest

import meshflow as tf
from meshflow.serving.protocol import describe_specs, make_response, parse_inputs

ONE = {"x": tf.TensorSpec([None, 2])}
TWO = {"ids": tf.TensorSpec([None], tf.int32), "text": tf.TensorSpec([None], tf.string)}


def test_rows_and_columns_are_the_same_arrays():
    for body, rows in (
        ({"instances": [[1, 2], [3, 4]]}, True),
        ({"instances": [{"x": [1, 2]}, {"x": [3, 4]}]}, True),
        ({"inputs": [[1, 2], [3, 4]]}, False),
        ({"inputs": {"x": [[1, 2], [3, 4]]}}, False),
    ):
        arrays, asked = parse_inputs(body, ONE)
        np.testing.assert_array_equal(arrays["x"], np.float32([[1, 2], [3, 4]]))
        assert asked == rows and arrays["x"].dtype == np.float32


def test_bytes_are_base64():
    row = {"ids": 1, "text": {"b64": "aGk="}}
    arrays, _ = parse_inputs({"instances": [row, {"ids": 2, "text": "du"}]}, TWO)
    assert arrays["text"].tolist() == [b"hi", b"du"] and arrays["ids"].dtype == np.int32
    plain, _ = parse_inputs(
        {"instances": [{"b64": "aGk="}]}, {"t": tf.TensorSpec([None], tf.string)}
    )
    assert plain["t"].tolist() == [b"hi"]
    data = np.array([b"hi", b"\xff"], object)
    assert make_response({"y_bytes": data}, True)["predictions"] == [
        {"b64": "aGk="},
        {"b64": "/w=="},
    ]
    assert make_response({"y": data[:1]}, True)["predictions"] == ["hi"]


def test_results_are_rows_or_columns():
    y, z = np.float32([[1], [2]]), np.int32([3, 4])
    assert make_response({"y": y}, True) == {"predictions": [[1.0], [2.0]]}
    assert make_response({"y": y}, False) == {"outputs": [[1.0], [2.0]]}
    assert make_response({"y": y, "z": z}, True) == {
        "predictions": [{"y": [1.0], "z": 3}, {"y": [2.0], "z": 4}]
    }
    assert make_response({"y": y, "z": z}, False) == {"outputs": {"y": [[1.0], [2.0]], "z": [3, 4]}}
    with pytest.raises(tf.errors.InvalidArgumentError, match="no common number of rows"):
        make_response({"y": y, "s": np.float32(1)}, True)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Missing 'inputs' or 'instances' key"),
        ({"inputs": [], "instances": []}, "Both"),
        ({"instances": []}, "non-empty list"),
        ({"instances": [[1, 2], {"x": [1, 2]}]}, "both objects"),
        ({"instances": [{"y": 1}]}, r"missing \['x'\], unknown \['y'\]"),
        ({"instances": [[1, 2, 3]]}, r"shape \[1, 3\], expected \[None, 2\]"),
        ({"instances": [[1, 2], [3]]}, "input 'x'"),
        ({"instances": [["a", "b"]]}, "not numbers"),
    ],
)
def test_mismatched_messages_are_refused(body, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        parse_inputs(body, ONE)


def test_numbers_and_bytes_that_do_not_fit_are_refused():
    for row, message in (
        ({"ids": 1.5, "text": "a"}, "not integers"),
        ({"ids": 1, "text": 2}, "not a string"),
        ({"ids": 1, "text": {"b64": "?"}}, "base64"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            parse_inputs({"instances": [row]}, TWO)
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be named"):
        parse_inputs({"inputs": [1]}, TWO)


def test_specs_are_described_as_tensorflow_does():
    assert describe_specs(ONE)["x"] == {
        "dtype": "DT_FLOAT",
        "tensor_shape": {
            "dim": [{"size": "-1", "name": ""}, {"size": "2", "name": ""}],
            "unknown_rank": False,
        },
        "name": "x",
    }


def test_the_extra_is_named(monkeypatch, tmp_path):
    from meshflow.serving import application, serve

    for name in ("starlette.applications", "uvicorn"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"meshflow-tf\[serving\]"):
        application("model", tmp_path)
    with pytest.raises(ImportError, match=r"meshflow-tf\[serving\]"):
        serve(tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        serve(tmp_path / "none")
