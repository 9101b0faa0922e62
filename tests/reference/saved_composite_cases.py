"""Functions and models of ragged tensors, sparse tensors and extension types, for TensorFlow and Meshflow."""

import numpy as np


def make_pair(tf):
    class Pair(tf.experimental.ExtensionType):
        __name__ = "cases.Pair"
        values: tf.RaggedTensor
        scale: tf.Tensor
        name: str = "p"

    return Pair


def make_module(tf, pair):
    ragged = tf.RaggedTensorSpec
    numbers = ragged([None, None], tf.float32)
    spec = pair.Spec(numbers, tf.TensorSpec([], tf.float32), "p")

    class Module(tf.Module):
        def __init__(self):
            super().__init__()
            self.weight = tf.Variable(np.arange(30, dtype=np.float32).reshape(10, 3) / 10)

        @tf.function(input_signature=[ragged([None, None], tf.int32)])
        def embed(self, x):
            return tf.reduce_sum(tf.nn.embedding_lookup(self.weight, x), 1)

        @tf.function(input_signature=[numbers])
        def rows(self, x):
            return {
                "dense": x.to_tensor(-1.0),
                "double": x * 2.0,
                "mask": tf.ragged.boolean_mask(x, x > 1.0),
                "head": x[:, :2],
                "sparse": x.to_sparse(),
                "mean": tf.reduce_mean(x, 1),
                "columns": tf.reduce_sum(x, 0),
                "concat": tf.concat([x, x], 1),
                "gather": tf.gather(x, [1, 0]),
                "range": tf.ragged.range(x.row_lengths()),
                "coordinates": tf.where(x > 1.0),
            }

        @tf.function(input_signature=[numbers, numbers])
        def add(self, x, y):
            return x + y

        @tf.function(input_signature=[ragged([None, None, None], tf.float32)])
        def nested(self, x):
            return tf.reduce_sum(x, 2), tf.reduce_max(x, [1, 2]), x.to_tensor(), x.merge_dims(1, 2)

        @tf.function(input_signature=[tf.SparseTensorSpec([None, 10], tf.float32)])
        def product(self, x):
            dense = tf.sparse.to_dense(x)
            return (
                tf.sparse.sparse_dense_matmul(x, self.weight),
                tf.sparse.reduce_sum(x, 1),
                dense,
                x * 3.0,
            )

        @tf.function(input_signature=[spec])
        def scaled(self, p):
            return pair(p.values * p.scale, p.scale + 1.0), tf.reduce_sum(p.values) * p.scale

        @tf.function(input_signature=[ragged([None, None], tf.string)])
        def text(self, x):
            return tf.strings.length(x), x.to_tensor("?"), tf.strings.upper(x)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def words(self, x):
            return tf.strings.split(x), tf.strings.split(x, ",").to_tensor("_")

    return Module()


def make_foreign_module(tf):
    """Return functions with ops that only TensorFlow saves."""
    ragged = tf.RaggedTensorSpec
    numbers, texts = ragged([None, None], tf.float32), ragged([None, None], tf.string)
    matrix = tf.SparseTensorSpec([None, 4], tf.float32)

    class Module(tf.Module):
        @tf.function(input_signature=[numbers])
        def rows(self, x):
            row = ragged([None], tf.float32, 0)
            return (
                tf.map_fn(lambda r: tf.reduce_sum(r) * 2.0, x, fn_output_signature=tf.float32),
                tf.map_fn(lambda r: r + 1.0, x, fn_output_signature=row),
            )

        @tf.function(input_signature=[numbers])
        def loop(self, x):
            total = tf.constant(0.0)
            for i in tf.range(x.nrows()):
                total += tf.reduce_sum(x[i]) * tf.cast(i, tf.float32)
            return total

        @tf.function(input_signature=[texts, texts])
        def cross(self, x, y):
            hashed = tf.ragged.cross_hashed([x, y], num_buckets=50)
            return tf.ragged.cross([x, y]), hashed, tf.strings.reduce_join(x, 1)

        @tf.function(input_signature=[matrix, matrix])
        def sparse(self, x, y):
            first, second = tf.sparse.split(x, 2, 1)
            return tf.sparse.softmax(x), tf.sparse.maximum(x, y), first, second

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int32), numbers])
        def counts(self, n, x):
            parts = tf.dynamic_partition(n, n % 2, 2)
            lengths = tf.cast(x.row_lengths(), tf.int32)
            return tf.sparse.bincount(n), parts, tf.sparse.bincount(tf.stack([n, lengths]), axis=-1)

        @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
        def grow(self, n):
            items = tf.TensorArray(tf.int32, 0, dynamic_size=True)
            for i in tf.range(n):
                items = items.write(i, i * i)
            return items.stack(), items.size()

    return Module()


def make_foreign_calls(tf):
    rows = tf.ragged.constant([[1.0, 2.0, 3.0], [], [4.0]])
    first = tf.ragged.constant([["a"], ["b", "c"]])
    sparse = tf.SparseTensor([[0, 1], [0, 3], [2, 0]], [2.0, 4.0, 1.0], [3, 4])
    numbers = tf.constant([1, 2, 2])
    return {
        "rows": [("rows", rows)],
        "loop": [("loop", rows)],
        "cross": [("cross", first, tf.ragged.constant([["d"], ["e"]]))],
        "sparse": [("sparse", sparse, sparse * -1.0)],
        "counts": [("counts", numbers, rows)],
        "grow": [("grow", tf.constant(4)), ("grow", tf.constant(1))],
    }


def make_calls(tf, pair):
    rows = tf.ragged.constant([[1.0, 2.0, 3.0], [], [4.0]])
    empty = tf.RaggedTensor.from_row_splits(tf.constant([], tf.float32), [0, 0, 0])
    return {
        "embed": [("embed", tf.ragged.constant([[1], [], [2, 3]], dtype=tf.int32))],
        "rows": [("rows", rows), ("rows", empty)],
        "add": [("add", rows, rows * 2.0)],
        "nested": [("nested", tf.ragged.constant([[[1.0, 2.0], []], [], [[4.0]]]))],
        "product": [("product", make_sparse(tf))],
        "scaled": [("scaled", pair(rows, 2.0))],
        "text": [("text", tf.ragged.constant([["a", "bcd"], [], ["ef"]]))],
        "words": [("words", tf.constant(["a b", "", "c,d"]))],
    }


def make_sparse(tf):
    return tf.SparseTensor([[0, 1], [2, 9]], [2.0, 4.0], [3, 10])


def make_models(tf):
    """Return models and inputs of them."""
    keras, numbers = tf.keras, np.random.default_rng(0)
    ids = keras.Input([None], dtype="int32", ragged=True, name="ids")
    hidden = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(20, 4)(ids))
    features = keras.Input([10], sparse=True, name="features")
    models = {
        "ragged": keras.Model(ids, keras.layers.Dense(2)(hidden)),
        "sparse": keras.Model(features, keras.layers.Dense(2)(features)),
    }
    for model in models.values():
        draw = [numbers.standard_normal(w.shape).astype(np.float32) for w in model.get_weights()]
        model.set_weights([w.round(2) for w in draw])
    rows = tf.ragged.constant([[1, 2, 3], [4]], dtype=tf.int32)
    return {"ragged": (models["ragged"], rows), "sparse": (models["sparse"], make_sparse(tf))}


def show(value):
    """Return a result as nested lists."""
    if isinstance(value, dict):
        return {key: show(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [show(part) for part in value]
    if hasattr(value, "to_list"):
        return show(value.to_list())
    if hasattr(value, "dense_shape"):
        return [show(part) for part in (value.indices, value.values, value.dense_shape)]
    if hasattr(value, "scale"):
        return [show(value.values), show(value.scale), value.name]
    if hasattr(value, "numpy"):
        return show(value.numpy().tolist())
    return value.decode() if isinstance(value, bytes) else value
