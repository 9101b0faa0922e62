"""Without LiteRT the error names the extra."""

import sys

import pytest

import meshflow as tf


@pytest.mark.parametrize("name", ["interpreter", "schema_py_generated"])
def test_the_extra_is_named(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    monkeypatch.setitem(sys.modules, f"ai_edge_litert.{name}", None)
    with pytest.raises(ImportError, match=r"meshflow-tf\[lite\]"):
        if name == "interpreter":
            tf.lite.Interpreter(model_content=b"")
        else:
            model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
            tf.lite.TFLiteConverter.from_keras_model(model).convert()
