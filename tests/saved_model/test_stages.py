"""SavedModels of functions with sizes that depend on values, which are saved in stages."""

import json
import re
import shutil

import numpy as np
import pytest

import meshflow as tf
from helpers import read_manifest

MATRIX = tf.SparseTensorSpec([None, None], tf.float32)
ROWS = tf.RaggedTensorSpec([None, None], tf.float32)
VECTOR, COUNTS = tf.TensorSpec([None], tf.float32), tf.TensorSpec([None], tf.int32)
TABLE = tf.reshape(tf.range(20.0), [10, 2])


def append_positive(x):
    rows = tf.TensorArray(tf.float32, 0, dynamic_size=True)
    for i in tf.range(tf.size(x)):
        if x[i] > 0:
            rows = rows.write(rows.size(), x[i] * 2)
    return rows.stack()


def grow(x):
    step = lambda i, y: (i + 1, tf.concat([y, x[i : i + 1] * 2], 0))
    shapes = tf.TensorShape([]), tf.TensorShape([None])
    start = tf.constant(0), tf.zeros([0])
    return tf.while_loop(lambda i, _: i < tf.size(x), step, start, shape_invariants=shapes)[1]


def embed(ids):
    ids = tf.sparse.map_values(tf.cast, ids, tf.int64)
    return tf.nn.safe_embedding_lookup_sparse(TABLE, ids, combiner="sum")


CASES = {
    "add": (tf.sparse.add, MATRIX, MATRIX),
    "fill": (lambda a: tf.sparse.fill_empty_rows(a, 0.5), MATRIX),
    "dense": (lambda a: tf.sparse.to_dense(tf.sparse.slice(a, [0, 0], [2, 2])), MATRIX),
    "split": (lambda a: tf.sparse.split(tf.sparse.reshape(a, [-1]), 2, 0), MATRIX),
    "softmax": (lambda a: tf.sparse.softmax(tf.sparse.maximum(a, a)), MATRIX),
    "columns": (lambda a: tf.sparse.reduce_sum(a, 0, output_is_sparse=True), MATRIX),
    "embed": (embed, MATRIX),
    "sets": (lambda a: tf.sets.union(tf.sparse.map_values(tf.cast, a, tf.int64), tf.constant([[1], [2], [9]], tf.int64)), MATRIX),
    "repeat": (lambda x, n: tf.repeat(x, n), VECTOR, COUNTS),
    "rows": (tf.RaggedTensor.from_row_lengths, VECTOR, COUNTS),
    "confusion": (lambda x, n: tf.math.confusion_matrix(n, n), VECTOR, COUNTS),
    "select": (lambda x, n: tf.reduce_sum(x[x > 1][:, None] * tf.ones([1, 2]), 0), VECTOR, COUNTS),
    "append": (append_positive, VECTOR),
    "grow": (grow, VECTOR),
    "branch": (lambda x: tf.cond(x[0] > 0, lambda: x[x > 1], lambda: x), VECTOR),
    "map": (lambda a: tf.map_fn(lambda r: 2 * r, a, fn_output_signature=tf.RaggedTensorSpec([None], tf.float32, 0)), ROWS),
    "row": (lambda a: a[1], ROWS),
    "cross": (lambda a: tf.ragged.cross_hashed([tf.cast(a, tf.int64)] * 2, 10), ROWS),
}  # fmt: skip


def make_calls(name):
    x, n = tf.constant([1.0, -2.0, 3.0, 2.0]), tf.constant([2, 0, 1, 1])
    dense = [[1.0, 0.0, 2.0], [0.0, 0.0, 0.0], [3.0, 0.0, 1.0]]
    values = {
        MATRIX: [tf.sparse.from_dense(dense), tf.sparse.from_dense(np.tril(np.ones([3, 5], "f")))],
        ROWS: [tf.ragged.constant([[1.0, 2.0], [], [3.0]]), tf.ragged.constant([[], [4.0, 5.0]])],
        VECTOR: [x, -x[1:3]],
        COUNTS: [n, n[:2]],
    }
    return [[values[spec][i] for spec in CASES[name][1:]] for i in range(2)]


def flatten(result):
    return [np.asarray(t).tolist() for t in tf.nest.flatten(result, expand_composites=True)]


def save(functions, folder):
    module = tf.Module()
    for name in functions:
        function, *specs = CASES[name]
        setattr(module, name, tf.function(function, input_signature=specs))
    tf.saved_model.save(module, folder)
    return tf.saved_model.load(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stages")


@pytest.fixture(scope="module")
def loaded(folder):
    return save(["add", "repeat", "append", "row", "select"], folder)


def check(loaded, name):
    for arguments in make_calls(name):
        assert flatten(getattr(loaded, name)(*arguments)) == flatten(CASES[name][0](*arguments))


@pytest.mark.parametrize("name", ["add", "repeat", "append", "row", "select"])
def test_values(name, loaded):
    check(loaded, name)


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_values_of_more_functions(name, tmp_path):
    check(save([name], tmp_path), name)


def test_gradients_and_outer_functions(loaded):
    x, n = make_calls("repeat")[0]
    for call in (loaded.repeat, tf.function(lambda x, n: loaded.repeat(x, n))):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(call(x, n) ** 2)
        assert tape.gradient(y, x).numpy().tolist() == [4.0, 0.0, 6.0, 4.0]
    matrix = make_calls("add")[0]
    outer = tf.function(lambda a, b: tf.sparse.to_dense(loaded.add(a, b)))
    assert outer(*matrix).numpy()[0].tolist() == [2.0, 0.0, 4.0]


@pytest.mark.soak
def test_saved_again(loaded, tmp_path):
    tf.saved_model.save(loaded, tmp_path)
    again = tf.saved_model.load(tmp_path)
    for name in ("add", "repeat", "append", "row", "select"):
        check(again, name)


def test_sizes_must_agree(loaded):
    a, b = tf.sparse.eye(2), tf.sparse.eye(3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="tensors with equal sizes"):
        loaded.add(a, b)


def list_plans(value):
    """Yield the plans in a JSON document, the inner ones too."""
    if isinstance(value, dict) and "sizes" in value:
        yield value
    for item in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from list_plans(item)


def test_damaged_plans_are_data_loss(loaded, folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    document = read_manifest(folder)
    owners = []
    for plan in list_plans(document):
        owners += [(plan, "results"), *((step, "inputs") for step in plan["steps"])]
        owners += [(step, "plans") for step in plan["steps"] if step.get("plans")]
    assert len(owners) > 20
    for owner, key in owners:
        value = owner[key]
        owner[key] = [] if key == "plans" else [*value[:-1], 10**6]
        (tmp_path / "manifest.json").write_text(json.dumps(document))
        with pytest.raises(tf.errors.DataLossError, match=re.escape(str(tmp_path))):
            tf.saved_model.load(tmp_path)
        owner[key] = value


def test_tensorflow_lacks_ops(tmp_path, caplog):
    save(["repeat"], tmp_path)
    assert "not for TensorFlow: sizes depend on values (repeats)" in caplog.text


def test_independent_sizes(tmp_path):
    module = tf.Module()
    module.join = tf.function(lambda x, y: tf.concat([x, y], 0), input_signature=[VECTOR, VECTOR])
    tf.saved_model.save(module, tmp_path)
    join = tf.saved_model.load(tmp_path).join
    assert join(tf.ones([2]), tf.zeros([3])).numpy().tolist() == [1, 1, 0, 0, 0]
