"""Sparse inputs of layers, models and `fit`, with values of TensorFlow 2.21 and tf-keras."""

import resource

import numpy as np
import pytest

import meshflow as tf
from helpers import combine

scipy_sparse = pytest.importorskip("scipy.sparse")
K = tf.keras
ROWS, COLUMNS = 300, 400_000


def make_matrix():
    r = np.random.RandomState(0)
    rows, columns = r.randint(0, ROWS, 2000), r.randint(0, COLUMNS, 2000)
    values = r.rand(2000).astype("float32")
    matrix = scipy_sparse.csr_matrix((values, (rows, columns)), shape=(ROWS, COLUMNS))
    matrix.sum_duplicates()
    return matrix, r.rand(ROWS, 1).astype("float32")


MATRIX, TARGETS = make_matrix()


def to_tensor(matrix):
    coo = matrix.tocoo()
    order = np.lexsort((coo.col, coo.row))
    indices = np.stack([coo.row, coo.col], 1)[order].astype(np.int64)
    return tf.SparseTensor(indices, coo.data[order], matrix.shape)


SPARSE = to_tensor(MATRIX)


def dense(units, **options):
    return K.layers.Dense(units, kernel_initializer="ones", **options)


def functional():
    inputs = K.Input((COLUMNS,), sparse=True)
    return K.Model(inputs, dense(1)(dense(2)(inputs)))


class Product(K.layers.Layer):
    def build(self, shape):
        self.w = self.add_weight(name="w", shape=(shape[-1], 1), initializer="ones")

    def call(self, x):
        return tf.sparse.sparse_dense_matmul(x, self.w)


def product():
    inputs = K.Input((COLUMNS,), sparse=True)
    return K.Model(inputs, Product()(inputs))


class Subclassed(K.Model):
    def __init__(self):
        super().__init__()
        self.head = dense(1)

    def call(self, x):
        return self.head(x)


ONE_LAYER = [9.951889, 9.9361477, 9.926199, 3.8768, 1.6208]
TWO_LAYERS = [45.08068, 42.549206, 41.032127, 7.357, 3.0621]
MODELS = {
    "sequential": (lambda: K.Sequential([dense(1)]), ONE_LAYER),
    "input": (lambda: K.Sequential([K.Input((COLUMNS,), sparse=True), dense(1)]), ONE_LAYER),
    "functional": (functional, TWO_LAYERS),
    "subclassed": (Subclassed, ONE_LAYER),
    "product": (product, [9.9576712, 9.9574518, 9.9572325, 3.8824, 1.6263]),
}


def compile_model(model):
    model.compile(K.optimizers.SGD(0.0001), "mse")
    return model


def get_peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize(("name", "data"), combine(MODELS, [MATRIX, SPARSE]))
def test_fit_evaluate_predict(name, data):
    make_model, expected = MODELS[name]
    before = get_peak()
    model = compile_model(make_model())
    losses = model.fit(data, TARGETS, 64, epochs=2, verbose=0, shuffle=False).history["loss"]
    loss = model.evaluate(data, TARGETS, 50, verbose=0)
    outputs = model.predict(data, 70, verbose=0)
    assert outputs.shape == (ROWS, 1)
    # A batch of 64 dense rows has 102 MB.
    assert get_peak() - before < 90
    np.testing.assert_allclose([*losses, loss, *outputs[:2, 0]], expected, rtol=5e-5)
    np.testing.assert_allclose(model(SPARSE), outputs, rtol=5e-5)


def test_forms_of_data():
    first = TWO_LAYERS[0]
    starts = range(0, ROWS, 64)
    slices = [(tf.sparse.slice(SPARSE, [i, 0], [64, COLUMNS]), TARGETS[i : i + 64]) for i in starts]
    matrices = [(MATRIX[i : i + 64], TARGETS[i : i + 64]) for i in starts]
    dataset = tf.data.Dataset.from_tensor_slices((SPARSE, TARGETS)).batch(64)
    for data in (iter(slices), iter(matrices), dataset):
        history = compile_model(functional()).fit(data, verbose=0, steps_per_epoch=5)
        np.testing.assert_allclose(history.history["loss"], [first], rtol=5e-5)
    model = compile_model(functional())
    model.fit(MATRIX, TARGETS, 64, verbose=0, shuffle=False, validation_data=(SPARSE, TARGETS))
    np.testing.assert_allclose(model.evaluate(dataset, verbose=0), 43.464226, rtol=5e-5)
    np.testing.assert_allclose(
        model.predict(dataset.map(lambda x, y: x), verbose=0)[0], 7.5574, rtol=5e-5
    )
    for data in (MATRIX, SPARSE):
        model = compile_model(functional())
        batch = [model.train_on_batch(data, TARGETS), model.test_on_batch(data, TARGETS)]
        np.testing.assert_allclose(batch, [46.05584, 45.524841], rtol=5e-5)
        with pytest.raises(ValueError, match="`validation_split` is only supported"):
            model.fit(data, TARGETS, validation_split=0.2)
    history = compile_model(functional()).fit(
        MATRIX, TARGETS, 64, verbose=0, shuffle=False, sample_weight=np.ones(ROWS)
    )
    np.testing.assert_allclose(history.history["loss"], [first], rtol=5e-5)


def test_several_inputs_and_layers(tmp_path):
    eye = scipy_sparse.csr_matrix(np.eye(3, dtype="float32"))
    a, b = K.Input((3,), sparse=True, name="a"), K.Input((3,), sparse=True, name="b")
    model = K.Model([a, b], dense(1)(K.layers.Concatenate()([a, b])))
    np.testing.assert_array_equal(model.predict({"a": eye, "b": eye}, verbose=0), [[2]] * 3)
    inputs = K.Input((3,), sparse=True)
    assert str(inputs.type_spec) == "SparseTensorSpec(TensorShape([None, 3]), tf.float32)"
    model = K.Model(inputs, dense(2)(K.layers.Lambda(tf.sparse.to_dense)(inputs)))
    np.testing.assert_array_equal(model.predict(eye, verbose=0), np.ones((3, 2)))
    model = K.Model(inputs, dense(2, activation="relu", bias_initializer="ones")(inputs))
    assert model.get_config()["layers"][0]["config"]["sparse"] is True
    for name in ("model.keras", "model.h5", "saved"):
        model.save(tmp_path / name)
        loaded = K.models.load_model(tmp_path / name)
        np.testing.assert_array_equal(loaded(tf.sparse.eye(3)), np.full((3, 2), 2))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.SparseTensor([[0, 1], [1, 1]], [2.0, 3.0], [2, 3])) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    np.testing.assert_allclose(gradients[0], [[0, 0], [36, 36], [0, 0]])
    with pytest.raises(ValueError, match="must be a matrix"):
        dense(2)(tf.sparse.expand_dims(tf.sparse.eye(3), 0))
    embed = K.layers.Embedding(5, 2, embeddings_initializer="ones")
    found = embed(tf.SparseTensor([[0, 0], [1, 1]], tf.constant([1, 3], tf.int64), [2, 3]))
    assert found.shape == [2, 3, 2] and tf.reduce_sum(found).numpy() == 4


def lookup(mode):
    weights = {"idf_weights": [1.0, 2.0]} if mode == "tf_idf" else {}
    return K.layers.StringLookup(vocabulary=["a", "b"], output_mode=mode, sparse=True, **weights)


LETTERS = [["a", "b"], ["c", "c"]]


@pytest.mark.parametrize(
    ("layer", "inputs", "indices", "values"),
    [
        (K.layers.CategoryEncoding(5, "multi_hot", True), [[0, 1], [3, 3]], [0, 1, 3], [1, 1, 1]),
        (K.layers.CategoryEncoding(5, "count", True), [[0, 1], [3, 3]], [0, 1, 3], [1, 1, 2]),
        (K.layers.CategoryEncoding(5, "one_hot", True), [[0], [3]], [0, 3], [1, 1]),
        (K.layers.Hashing(5, output_mode="count", sparse=True), LETTERS, [2, 4, 2], [1, 1, 2]),
        (lookup("multi_hot"), LETTERS, [1, 2, 0], [1, 1, 1]),
        (lookup("count"), LETTERS, [1, 2, 0], [1, 1, 2]),
        (lookup("tf_idf"), LETTERS, [1, 2, 0], [1, 2, 3]),
        (
            K.layers.Discretization([1.0, 2.0], None, 0.01, "one_hot", True),
            [[0.5], [2.5]],
            [0, 2],
            [1, 1],
        ),
    ],
)
def test_sparse_encodings(layer, inputs, indices, values):
    encoded = layer(np.array(inputs))
    assert isinstance(encoded, tf.SparseTensor)
    assert encoded.indices.numpy()[:, 1].tolist() == indices
    assert encoded.values.numpy().tolist() == values
    config = layer.get_config()
    assert config["sparse"] is True and type(layer).from_config(config).sparse


def test_sparse_ids_and_texts():
    words = tf.SparseTensor([[0, 0], [1, 1]], ["a", "b"], [2, 3])
    for layer, ids in [
        (K.layers.StringLookup(vocabulary=["a", "b"]), [1, 2]),
        (K.layers.Hashing(5), [4, 2]),
    ]:
        found = layer(words)
        assert found.values.numpy().tolist() == ids and found.shape == [2, 3]
    ids = tf.SparseTensor([[0, 0], [1, 1]], tf.constant([1, 3], tf.int64), [2, 3])
    encoded = K.layers.CategoryEncoding(5, "multi_hot")(ids)
    assert encoded.numpy().tolist() == [[0, 1, 0, 0, 0], [0, 0, 0, 1, 0]]
    layer = K.layers.TextVectorization(output_mode="multi_hot", sparse=True, max_tokens=10)
    layer.adapt(["a b", "b c"])
    model = K.Sequential([K.Input((1,), dtype="string"), layer, dense(1)])
    model.compile("sgd", "mse")
    texts = tf.constant([["a b b"], ["c"]])
    np.testing.assert_array_equal(model.predict(texts, verbose=0), [[2], [1]])
    model.fit(texts, tf.constant([[1.0], [0.0]]), verbose=0)


PADDED = {
    "matmul": lambda x, w: tf.sparse.sparse_dense_matmul(x, w),
    "dense": lambda x, w: tf.sparse.to_dense(x) @ w,
    "joined": lambda x, w: tf.sparse.to_dense(tf.sparse.concat(1, [x, x]))[:, 6:] @ w,
    "reshaped": lambda x, w: tf.sparse.to_dense(tf.sparse.reshape(x, [5, 2, 6]))[:, 0] @ w,
    "added": lambda x, w: tf.sparse.add(x, tf.zeros([10, 6])) @ w,
    "reduced": lambda x, w: tf.sparse.reduce_sum(x * tf.transpose(w), 1, keepdims=True),
}


@pytest.mark.parametrize("name", PADDED)
def test_padding_of_batches_passes_bounds_checks(name):
    # 18 elements, padded to 32.
    data = scipy_sparse.random(10, 6, 0.3, "csr", random_state=0, dtype=np.float32)
    compute = PADDED[name]
    dense = data.toarray().reshape(5, 2, 6)[:, 0] if name == "reshaped" else data.toarray()
    expected = (dense @ np.ones((6, 1), np.float32)).mean()

    class Summary(K.Model):
        def __init__(self, wrap):
            super().__init__()
            self.w = self.add_weight(name="w", shape=(6, 1), initializer="ones")
            self.compute = wrap(compute)

        def call(self, x):
            return tf.reduce_mean(self.compute(x, self.w)) + tf.zeros([10, 1])

    for wrap in (tf.function, lambda f: f):
        for run_eagerly in (False, True):
            model = Summary(wrap)
            model.compile("sgd", "mae", run_eagerly=run_eagerly)
            loss = model.evaluate(data, np.zeros((10, 1)), 10, verbose=0)
            np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_elements_outside_of_the_shape(method):
    model = compile_model(K.Sequential([dense(1)]))
    x = tf.SparseTensor([[0, 1], [3, 7]], [1.0, 2.0], [10, 6])
    arguments = (x,) if method == "predict" else (x, np.ones((10, 1)))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[3,7\] is out of bounds"):
        getattr(model, method)(*arguments, verbose=0)


class ToDense(K.layers.Layer):
    def build(self, shape):
        self.w = self.add_weight(name="w", shape=(shape[-1], 1), initializer="ones")

    def call(self, x):
        return tf.sparse.to_dense(x) @ self.w


def test_sequential_models_build_on_sparse_tensors():
    x = tf.SparseTensor([[0, 1], [3, 5], [9, 2]], [1.0, 2.0, 3.0], [10, 6])
    model = compile_model(K.Sequential([ToDense()]))
    assert model(x).numpy()[:4, 0].tolist() == [1, 0, 0, 2]
    model = compile_model(K.Sequential([ToDense()]))
    loss = model.fit(x, np.ones((10, 1)), batch_size=10, verbose=0).history["loss"]
    np.testing.assert_allclose(loss, [1.2], rtol=1e-6)


def test_steps_are_traced_once_for_all_numbers_of_elements():
    traces = []

    class Counting(Product):
        def call(self, x):
            traces.append(x.shape)
            return super().call(x)

    batches = [np.eye(4, 6)[:, : 1 + n] @ np.ones([1 + n, 6]) for n in range(4)]
    batches = [tf.sparse.from_dense(b.astype("float32")) for b in batches]
    inputs = K.Input((6,), sparse=True)
    model = K.Model(inputs, Counting()(inputs))
    model.compile("sgd", "mse")
    traces.clear()
    assert len({int(tf.shape(batch.values)[0]) for batch in batches}) == 4
    losses = [float(model.train_on_batch(batch, np.ones([4, 1]))) for batch in batches]
    assert len(traces) == 1
    assert np.all(np.isfinite(losses))


def test_steps_of_the_user_see_no_padding():
    class Mean(tf.keras.Model):
        def train_step(self, data):
            return {"mean": tf.reduce_mean(data.values), "rows": tf.reduce_max(data.indices)}

    rows = tf.sparse.from_dense([[2.0, 4.0, 0.0], [0.0, 6.0, 0.0]])
    model = Mean()
    model.compile("sgd")
    history = model.fit(tf.data.Dataset.from_tensors(rows), verbose=0).history
    assert history["mean"] == [4] and history["rows"] == [1]
