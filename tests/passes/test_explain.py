import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshflow as tf
from meshflow import passes

X = np.ones((4, 4), np.float32)


def block(x):
    hidden = jax.nn.relu(x @ x + 1.0)
    return jax.nn.softmax(hidden @ x)


def by_name(explanation):
    return {row.primitive: row for row in explanation.rows}


def test_rows_name_the_device_and_the_reason():
    rows = passes.explain(block, X).rows
    assert [r.primitive for r in rows[:4]] == ["dot_general", "add", "max", "dot_general"]
    assert {r.precision for r in rows[:4]} == {"bfloat16"}
    found = by_name(passes.explain(block, X))
    assert (
        found["add"].list == "infer"
        and "between dot_general and dot_general" in found["add"].reason
    )
    assert found["exp"].list == "deny" and found["exp"].precision == "float32"
    assert found["div"].reason.startswith("computed from")
    assert found["dot_general"].result == "float32[4, 4]"
    lines = {r.source.rsplit(":", 1)[1] for r in rows}
    assert all("test_explain.py:" in r.source for r in rows) and len(lines) == 2


def test_the_table():
    text = str(passes.explain(block, X, dtype="float16"))
    head, rule, first, *_, last = text.splitlines()
    assert head.split() == ["primitive", "result", "list", "precision", "why", "where"]
    assert set(rule) == {"-", " "} and first.startswith("dot_general") and "float16" in first
    assert last.endswith("equations in float16")
    assert "No equation" in str(passes.explain(lambda x: x + 1, np.int32(3)))
    assert "no float32 product" in passes.explain(jnp.sin, X).rows[0].reason
    with pytest.raises(ValueError, match="'int8'"):
        passes.explain(block, X, dtype="int8")


def test_tensors_functions_and_layers():
    explain = tf.mixed_precision.explain
    weight = tf.Variable(X)

    def fn(x):
        return tf.exp(tf.nn.relu(x @ weight) @ weight)

    expected = ["dot_general", "max", "dot_general", "exp"]
    for target in (fn, tf.function(fn)):
        for argument in (tf.constant(X), tf.TensorSpec([4, 4], tf.float32)):
            rows = explain(target, argument).rows
            assert [r.primitive for r in rows] == expected
            assert all("test_explain.py:" in r.source for r in rows)
    layer = tf.keras.layers.Dense(2)
    layer(X)
    assert by_name(explain(layer, X))["dot_general"].precision == "bfloat16"


def test_shapes_instead_of_arrays():
    spec = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    assert by_name(passes.explain(block, spec))["add"].precision == "bfloat16"


def test_the_table_in_notebooks():
    text = passes.explain(lambda x: jnp.sin(x @ x) < 1, X)._repr_html_()
    assert text.count("<tr>") == 4 and text.count('font-weight:bold">bfloat16<') == 1
    assert "&lt;lambda" not in text and "1 of 3 equations in bfloat16" in text
    assert "No equation" in passes.explain(lambda x: x + 1, np.int32(3))._repr_html_()


def test_flags_and_names_may_be_arguments():
    def block(x, times, activation="tanh"):
        for _ in range(times):
            x = getattr(jnp, activation)(x @ x)
        return x

    names = [r.primitive for r in passes.explain(block, X, 2, activation="sin").rows]
    assert names == ["dot_general", "sin", "dot_general", "sin"]
