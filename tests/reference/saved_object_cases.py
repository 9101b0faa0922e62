"""Define a module with all kinds of attributes that SavedModels have, and assertions about the
loaded module."""

import collections
import functools

import numpy as np

Pair = collections.namedtuple("Pair", ["product", "sum"])


def module(tf, sparse):
    """Build the module.

    Args:
        tf: TensorFlow or Meshflow.
        sparse: whether it has functions of sparse tensors, which Meshflow cannot trace.
    """
    number, vector = tf.TensorSpec([], tf.float32), tf.TensorSpec([None], tf.float32)
    root = tf.train.Checkpoint()
    root.variable = tf.Variable(3.0)
    root.attributes = {
        "replicated": tf.Variable(
            1.0,
            trainable=False,
            synchronization=tf.VariableSynchronization.NONE,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        ),
        "growing": tf.Variable([1, 2], shape=[None]),
        "any": tf.Variable([1.0], shape=tf.TensorShape(None)),
    }
    scaled = tf.function(lambda x, y: x * (y + 1.0))
    root.concrete = scaled.get_concrete_function(number, number)
    root.of_any_rank = tf.function(lambda x: x * root.variable).get_concrete_function(
        tf.TensorSpec(None, tf.float32)
    )
    root.losses = [
        tf.function(lambda: root.variable**2, input_signature=[]),
        "no function",
        tf.function(lambda: root.variable * 3.0, input_signature=[]),
    ]
    root.named = {"hundred": tf.function(lambda: tf.constant(100.0), input_signature=[])}
    root.pairs = tf.function(lambda pair: Pair(pair.sum * pair.product, pair.sum))
    root.pairs(Pair(tf.constant(2.0), tf.constant(5.0)))
    root.partial = tf.function(functools.partial(lambda x, y=3: x + y, y=5))
    root.partial(tf.constant(1))
    root.chosen = tf.function(lambda x, training=False: 2 * x if training else 3 * x)
    root.chosen.get_concrete_function(tf.TensorSpec([None], tf.int32), True)
    root.chosen.get_concrete_function(vector)
    root.untraced = tf.function(lambda x: x)
    root.inner = tf.train.Checkpoint()
    setattr(root.inner, "__call__", tf.function(lambda x: x * 3.0, input_signature=[vector]))
    if sparse:
        spec = tf.SparseTensorSpec([None, 3], tf.float32)
        root.doubled = tf.function(
            lambda s: tf.SparseTensor(s.indices, s.values * 2.0, s.dense_shape),
            input_signature=[spec],
        )
        root.nonzero = tf.function(
            lambda x: {"sparse": tf.sparse.from_dense(x), "dense": x},
            input_signature=[tf.TensorSpec([None, 3], tf.float32)],
        )
        root.rows = tf.function(
            lambda x: tf.IndexedSlices(x, tf.constant([0, 2]), tf.constant([3, 1])),
            input_signature=[tf.TensorSpec([2, 1], tf.float32)],
        )
        root.ragged = tf.function(
            lambda x: tf.ragged.range(x), input_signature=[tf.TensorSpec([None], tf.int32)]
        )
    return root


def signature(tf, root):
    """A signature of it, with names that no parameters have."""
    specs = [tf.TensorSpec([], tf.int32, name=name) for name in ("A-b", "2")]
    root.difference = tf.function(lambda a, b: a - b, input_signature=specs)
    return root.difference


def check(tf, loaded, sparse):
    """Assert properties of the loaded module."""
    equal = np.testing.assert_array_equal
    replicated = loaded.attributes["replicated"]
    assert not replicated.trainable
    assert replicated.synchronization is tf.VariableSynchronization.NONE
    assert replicated.aggregation is tf.VariableAggregation.ONLY_FIRST_REPLICA
    assert loaded.attributes["growing"].shape.as_list() == [None]
    equal(loaded.attributes["growing"].assign([1, 2, 3]), [1, 2, 3])
    equal(loaded.attributes["any"].assign([[2.0]]), [[2.0]])
    two, three = tf.constant(2.0), tf.constant(3.0)
    equal(loaded.concrete(two, three), 8.0)
    equal(loaded.concrete(y=three, x=two), 8.0)
    assert not hasattr(loaded.concrete, "get_concrete_function")
    equal(loaded.of_any_rank(tf.constant([[1.0], [2.0]])), [[3.0], [6.0]])
    with tf.GradientTape() as tape:
        tape.watch(two)
        y = loaded.concrete(two, three)
    equal(tape.gradient(y, two), 4.0)
    equal(loaded.losses[0](), 9.0)
    assert loaded.losses[1] is None and len(loaded.losses) == 3
    equal(loaded.losses[2](), 9.0)
    equal(loaded.named["hundred"](), 100.0)
    found = loaded.pairs(Pair(three, two))
    assert type(found).__name__ == "Pair" and found._fields == ("product", "sum")
    equal(found.product, 6.0)
    equal(loaded.partial(tf.constant(1)), 6)
    concrete = loaded.chosen.get_concrete_function(training=True, x=tf.TensorSpec([None], tf.int32))
    equal(concrete(x=tf.constant([1, 2])), [2, 4])
    equal(loaded.chosen(tf.constant([1.0])), [3.0])
    for wrong in (
        lambda: loaded.chosen.get_concrete_function(tf.TensorSpec([None], tf.int32)),
        lambda: loaded.chosen(tf.constant([1])),
        lambda: loaded.untraced(1),
    ):
        try:
            wrong()
        except ValueError as error:
            assert "Could not find matching" in str(error) or "zero restored" in str(error)
        else:
            raise AssertionError
    equal(loaded.inner(tf.constant([1.0])), [3.0])
    assert callable(loaded.inner) and not callable(loaded)
    difference = loaded.signatures["serving_default"]
    equal(difference(A_b=tf.constant(3), arg_2=tf.constant(1))["output_0"], 2)
    try:
        loaded.signatures["more"] = difference
    except TypeError:
        pass
    else:
        raise AssertionError
    assert loaded.tensorflow_version
    if sparse:
        _check_sparse(tf, loaded, equal)


def _check_sparse(tf, loaded, equal):
    doubled = loaded.doubled(tf.sparse.from_dense([[1.0, 0.0, 2.0]]))
    equal(tf.sparse.to_dense(doubled), [[2.0, 0.0, 4.0]])
    found = loaded.nonzero(tf.constant([[0.0, 5.0, 0.0]]))
    equal(found["sparse"].indices, [[0, 1]])
    equal(found["sparse"].values, [5.0])
    equal(found["dense"], [[0.0, 5.0, 0.0]])
    equal(tf.convert_to_tensor(loaded.rows(tf.ones([2, 1]))), [[1.0], [0.0], [1.0]])
