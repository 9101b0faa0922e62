"""Datasets of extension types, with the elements that TensorFlow 2.21 computes."""

import numpy as np
import pytest

import meshflow as tf

D = tf.data.Dataset


class Pair(tf.experimental.BatchableExtensionType):
    x: tf.Tensor
    name: str = "a"


class Graph(tf.experimental.BatchableExtensionType):
    edges: tf.RaggedTensor
    x: tf.Tensor


class Nested(tf.experimental.BatchableExtensionType):
    sparse: tf.SparseTensor
    pair: Pair


class Single(tf.experimental.ExtensionType):
    x: tf.Tensor


class HalfEncoder(tf.experimental.ExtensionTypeBatchEncoder):
    """Encode numbers as doubles."""

    def encode(self, spec, value, minimum_rank=0):
        return [value.x * 2.0]

    def decode(self, spec, encoding):
        return Encoded(encoding[0] / 2.0)


class Encoded(tf.experimental.BatchableExtensionType):
    x: tf.Tensor
    __batch_encoder__ = HalfEncoder()


PAIR = Pair(np.arange(6, dtype=np.float32).reshape(3, 2))
GRAPH = Graph(tf.ragged.constant([[1, 2], [], [3]]), np.arange(3, dtype=np.float32))
NESTED = Nested(tf.SparseTensor([[0, 1], [2, 0]], [1.0, 2.0], [3, 2]), PAIR)
PAIRS = D.from_tensor_slices(PAIR)


def show(value):
    """Return the tensors of a value as lists, and its Python values."""
    if isinstance(value, list | tuple):
        return [show(item) for item in value]
    if isinstance(value, tf.experimental.ExtensionType):
        return [show(item) for item in tf.experimental.extension_type.as_dict(value).values()]
    if isinstance(value, tf.SparseTensor):
        return tf.sparse.to_dense(value).numpy().tolist()
    if isinstance(value, tf.RaggedTensor):
        return value.to_list()
    return np.asarray(value).tolist() if tf.is_tensor(value) else value


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (lambda: PAIRS, [[[0, 1], "a"], [[2, 3], "a"], [[4, 5], "a"]]),
        (lambda: D.from_tensors(PAIR), [[[[0, 1], [2, 3], [4, 5]], "a"]]),
        (lambda: PAIRS.batch(2), [[[[0, 1], [2, 3]], "a"], [[[4, 5]], "a"]]),
        (lambda: PAIRS.batch(2).unbatch(), [[[0, 1], "a"], [[2, 3], "a"], [[4, 5], "a"]]),
        (lambda: PAIRS.batch(2).rebatch(3), [[[[0, 1], [2, 3], [4, 5]], "a"]]),
        (lambda: PAIRS.prefetch(2).cache().batch(3), [[[[0, 1], [2, 3], [4, 5]], "a"]]),
        (lambda: PAIRS.map(lambda p: Pair(p.x * 2, p.name)).batch(3), [[[[0, 2], [4, 6], [8, 10]], "a"]]),
        (lambda: D.range(2).map(lambda i: Pair([i, i])).batch(2), [[[[0, 0], [1, 1]], "a"]]),
        (lambda: PAIRS.map(lambda p: tf.reduce_sum(p.x)), [1, 5, 9]),
        (lambda: PAIRS.filter(lambda p: tf.reduce_sum(p.x) > 6), [[[4, 5], "a"]]),
        (lambda: D.from_generator(lambda: iter([PAIR] * 2), output_signature=PAIR._type_spec).batch(2),
         [[[[[0, 1], [2, 3], [4, 5]]] * 2, "a"]]),
        (lambda: D.zip((PAIRS, D.range(3))).batch(3), [[[[[0, 1], [2, 3], [4, 5]], "a"], [0, 1, 2]]]),
        (lambda: D.from_tensor_slices(GRAPH).batch(2), [[[[1, 2], []], [0, 1]], [[[3]], [2]]]),
        (lambda: D.from_tensors(GRAPH).batch(1), [[[[[1, 2], [], [3]]], [[0, 1, 2]]]]),
        (lambda: D.from_tensor_slices(NESTED).batch(2),
         [[[[0, 1], [0, 0]], [[[0, 1], [2, 3]], "a"]], [[[2, 0]], [[[4, 5]], "a"]]]),
        (lambda: D.from_tensors(Single(1.0)), [[1]]),
        (lambda: D.range(2).map(Single).map(lambda s: s.x), [0, 1]),
        (lambda: D.from_tensor_slices(Encoded([1.0, 2.0, 3.0])).batch(2), [[[1, 2]], [[3]]]),
    ],
)  # fmt: skip
def test_elements(dataset, expected):
    assert show(list(dataset())) == expected


def test_specs():
    assert PAIRS.element_spec == Pair.Spec(tf.TensorSpec([2]), "a")
    assert PAIRS.batch(2).element_spec == Pair.Spec(tf.TensorSpec([None, 2]), "a")
    spec = D.from_tensor_slices(NESTED).batch(2, drop_remainder=True).element_spec
    assert spec.sparse == tf.SparseTensorSpec([2, 2]) and spec.pair.x == tf.TensorSpec([2, 2])
    graphs = D.from_tensors(GRAPH).batch(1).element_spec
    assert graphs.edges == tf.RaggedTensorSpec([None, 3, None], tf.int32, 2)
    assert len(PAIRS.batch(2)) == 2


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (lambda: PAIRS.padded_batch(2), NotImplementedError),
        (lambda: D.from_tensors(Single(1.0)).batch(1).element_spec, TypeError),
        (lambda: tf.map_fn(lambda s: s.x, Single([1.0])), TypeError),
        (lambda: D.from_tensor_slices((PAIR, [1, 2])), ValueError),
        (lambda: D.from_tensors(Pair(1.0)).concatenate(D.from_tensors(Pair(1.0, "b"))), TypeError),
        (lambda: list(D.range(1, 3).map(lambda i: Pair(tf.ones([i]))).batch(2)), tf.errors.InvalidArgumentError),
        (lambda: list(D.from_generator(lambda: [3], output_signature=PAIR._type_spec)), tf.errors.InvalidArgumentError),
    ],
)  # fmt: skip
def test_errors(use, error):
    with pytest.raises(error):
        use()


def test_functions_and_maps():
    @tf.function
    def add(dataset):
        total = 0.0
        for pair in dataset:
            total += tf.reduce_sum(pair.x)
        return total

    assert float(add(PAIRS.batch(2))) == 15
    assert float(PAIRS.reduce(0.0, lambda s, p: s + tf.reduce_sum(p.x))) == 15
    sums = tf.map_fn(lambda p: tf.reduce_sum(p.x), PAIR, fn_output_signature=tf.float32)
    assert show(sums) == [1, 5, 9]
    spec = Pair.Spec(tf.TensorSpec([2]), "a")
    moved = tf.map_fn(lambda p: Pair(p.x + 1), PAIR, fn_output_signature=spec)
    assert show(moved) == [[[1, 2], [3, 4], [5, 6]], "a"]
    encoded = tf.map_fn(lambda e: Encoded(e.x + 1.0), Encoded([1.0, 2.0]))
    assert show(encoded) == [[2, 3]]
    nested = tf.map_fn(lambda n: Nested(n.sparse, Pair(n.pair.x + 1)), NESTED)
    assert show(nested) == [[[0, 1], [0, 0], [2, 0]], [[[1, 2], [3, 4], [5, 6]], "a"]]
