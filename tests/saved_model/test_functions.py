"""Test functions of many kinds, saved: called again here, by the graph alone, and in TensorFlow
where it is installed."""

import os
import pathlib
import pickle
import shutil
import subprocess

import numpy as np
import pytest

import meshflow as tf
from capabilities import PEERS_PYTHON, needs_tensorflow
from helpers import assert_close

ROOT = pathlib.Path(__file__).parent.parent.parent
SCRIPT = pathlib.Path(__file__).parent / "scripts" / "called_in_tensorflow.py"
layers = tf.keras.layers
Spec = tf.TensorSpec
RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=[5, 4]).astype("float32")
MATRICES = RANDOM.normal(size=[2, 3, 3]).astype("float32")
MATRICES = MATRICES @ MATRICES.transpose(0, 2, 1) + 3 * np.eye(3, dtype="float32")
TEXTS = np.array(["the cat", "A dog, a dog!", "", "the end"], object)


class Sizes(tf.Module):
    """Define results of value-dependent sizes."""

    @tf.function(input_signature=[Spec([None, 4])])
    def places(self, x):
        found = tf.where(x > 0)
        return found, tf.shape(found)[0], tf.gather_nd(x, found) * 2.0

    @tf.function(input_signature=[Spec([None, 4])])
    def masked(self, x):
        few, many = tf.dynamic_partition(x, tf.cast(x[:, 1] > 0, tf.int32), 2)
        return tf.boolean_mask(x, x[:, 0] > 0) + 1.0, tf.boolean_mask(x, x > 0), few, many

    @tf.function(input_signature=[Spec([None], tf.int32)])
    def different(self, x):
        found = tf.unique_with_counts(x)
        return tuple(found), found.y * found.count, tuple(tf.unique(x))

    @tf.function(input_signature=[Spec([None, 4]), Spec([None])])
    def boxes(self, boxes, scores):
        kept = tf.image.non_max_suppression(boxes, scores, 3, 0.4)
        return kept, tf.gather(boxes, kept)


class Algebra(tf.Module):
    """Define functions that JAX computes by LAPACK."""

    @tf.function(input_signature=[Spec([None, 3, 3])])
    def f(self, x):
        return (
            *(tf.linalg.cholesky(x), tf.linalg.inv(x), tf.linalg.eigvalsh(x)),
            *(tf.abs(tf.linalg.qr(x)[1]), tf.linalg.solve(x, x[:, :, :1])),
        )


class Ranks(tf.Module):
    """Tensors of any rank."""

    def __init__(self):
        super().__init__()
        self.factor = tf.Variable(3.0)

    @tf.function(input_signature=[Spec(None)])
    def f(self, x):
        return {"scaled": x * self.factor, "sum": tf.reduce_sum(x)}


class Texts(tf.Module):
    """Layers of strings inside functions."""

    def __init__(self):
        super().__init__()
        self.ids = layers.TextVectorization(output_sequence_length=4)
        self.any_length = layers.TextVectorization()
        self.weights_of = layers.TextVectorization(output_mode="tf_idf")
        for layer in (self.ids, self.any_length, self.weights_of):
            layer.adapt(TEXTS)
        self.several = layers.StringLookup(vocabulary=["a", "b"], num_oov_indices=3)
        self.chosen = layers.StringLookup(vocabulary=["a", "b"], output_mode="multi_hot")
        self.words = layers.StringLookup(vocabulary=["a", "b"], invert=True)
        self.bins, self.salted = layers.Hashing(7, mask_value="a"), layers.Hashing(7, salt=3)
        self.table = tf.Variable(RANDOM.normal(size=[9, 2]).astype("float32"))

    @tf.function(input_signature=[Spec([None], tf.string)])
    def vectors(self, x):
        rows = tf.gather(self.table, self.any_length(x))
        return self.ids(x), tf.reduce_sum(rows, 1), self.weights_of(x)

    @tf.function(input_signature=[Spec([None, 1], tf.string)])
    def numbers(self, x):
        number = self.several(x)
        return number, self.words(number), self.chosen(x), self.bins(x), self.salted(x)

    @tf.function(input_signature=[Spec([None], tf.string)])
    def moved(self, x):
        strong = tf.strings.to_hash_bucket_strong(x, 50, [1, 2])
        return tf.gather(x, [1, 0]), tf.tile(x, [2]), strong, tuple(tf.unique(x))

    @tf.function(input_signature=[Spec([None], tf.string)])
    def spelled(self, x):
        lengths = tf.strings.length(x)
        coded = tf.io.encode_base64(x, pad=True)
        return (
            tf.strings.as_string(lengths),
            tf.where(lengths > 3, x, "short"),
            tf.reshape(tf.strings.reduce_join(x), [1]),
            tf.io.decode_base64(coded),
            tf.strings.unicode_transcode(coded, "UTF-8", "UTF-16-BE"),
        )

    @tf.function(input_signature=[Spec([None], tf.string)])
    def characters(self, x):
        rows = tf.strings.unicode_split(x, "UTF-8")
        return rows.flat_values, rows.row_lengths()


class Kernels(tf.Module):
    """Weights determine the last size."""

    def __init__(self):
        super().__init__()
        self.kernel = tf.Variable(tf.reshape(tf.range(12.0), [4, 3]))

    @tf.function(input_signature=[Spec([None, None])])
    def product(self, x):
        return tf.matmul(x, self.kernel) + self.kernel[0]

    @tf.function(input_signature=[Spec([None, None, None])])
    def batched(self, x):
        return x * 2.0 @ self.kernel


class Trained(tf.Module):
    """A step of training for any batch."""

    def __init__(self):
        super().__init__()
        self.model = tf.keras.Sequential([tf.keras.Input([4]), layers.Dense(3)])
        self.loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.optimizer = tf.keras.optimizers.SGD(0.1)

    @tf.function(input_signature=[Spec([None, 4]), Spec([None], tf.int64)])
    def train(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss(y, self.model(x, training=True))
        variables = self.model.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss


WORDS = np.array([["a"], ["q"], ["b"], ["zz"]], object)
BOXES = np.array([[0, 0, 1, 1], [0, 0, 1, 0.9], [0.5, 0.5, 2, 2]], "float32")
# Modules with calls of their functions; a name with a colon is a signature's.
CASES = {
    "sizes": (
        Sizes,
        [
            *((name, [x]) for name in ("places", "masked") for x in (ROWS, -abs(ROWS), ROWS[:1])),
            ("different", [np.array([3, 1, 3, 2, 3], np.int32)]),
            ("boxes", [BOXES, np.array([0.5, 0.9, 0.7], "float32")]),
        ],
    ),
    "algebra": (Algebra, [("f", [MATRICES]), ("f", [MATRICES[:1]])]),
    "ranks": (Ranks, [(":serving_default", [ROWS[i]]) for i in (0, slice(1, 3), (0, 1))]),
    "texts": (
        Texts,
        [
            *((name, [x]) for name in ("vectors", "moved", "spelled") for x in (TEXTS, TEXTS[:2])),
            ("vectors", [TEXTS[2:3]]),
            ("numbers", [WORDS]),
            ("characters", [TEXTS]),
        ],
    ),
    "kernels": (
        Kernels,
        [
            *(("product", [ROWS[:n]]) for n in (3, 1)),
            *(("batched", [ROWS[None, :n]]) for n in (2, 4)),
        ],
    ),
    "trained": (Trained, [("train", [ROWS[:n], np.arange(n) % 3]) for n in (5, 2, 5)]),
}


def call_functions(loaded, calls):
    results = []
    for name, arguments in calls:
        given = [tf.constant(a) for a in arguments]
        if name.startswith(":"):
            function = loaded.signatures[name[1:]]
            (key,) = function.structured_input_signature[1]
            found = function(**{key: given[0]})
        else:
            found = getattr(loaded, name)(*given)
        results.append([t.numpy() for t in tf.nest.flatten(found)])
    return results


def assert_same(found, wanted):
    for own, others in zip(found, wanted, strict=True):
        for a, b in zip(own, others, strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            if a.dtype.kind == "f":
                assert_close(a, b, 2e-5)
            else:
                assert a.tolist() == b.tolist()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return the folders of all modules, with the results of the modules before saving."""
    folder = tmp_path_factory.mktemp("functions")
    wanted = {}
    for name, (kind, calls) in CASES.items():
        module = kind()
        if name == "trained":
            module.optimizer.build(module.model.trainable_variables)
        tf.saved_model.save(module, folder / name)
        (folder / f"{name}.calls").write_bytes(pickle.dumps(calls))
        # A signature's function has its own name.
        own = [(n.replace(":serving_default", "f"), arguments) for n, arguments in calls]
        wanted[name] = call_functions(module, own)
    return folder, wanted


@pytest.mark.parametrize("name", CASES)
def test_functions_are_saved_for_any_size(saved, name, tmp_path):
    folder, wanted = saved
    calls = CASES[name][1]
    assert_same(call_functions(tf.saved_model.load(folder / name), calls), wanted[name])
    if name in ("algebra", "trained"):
        # Programs of the graph contain calls that this XLA expands more slowly, and no gradients.
        return
    shutil.copytree(folder / name, tmp_path / name, ignore=shutil.ignore_patterns("manifest.json"))
    assert_same(call_functions(tf.saved_model.load(tmp_path / name), calls), wanted[name])


@needs_tensorflow
def test_tensorflow_calls_saved_functions(saved):
    folder, wanted = saved
    subprocess.run([PEERS_PYTHON, str(SCRIPT), str(folder)], check=True, timeout=600, env={**os.environ, "PYTHONPATH": ""})  # fmt: skip
    for name in CASES:
        assert_same(pickle.loads((folder / f"{name}.results").read_bytes()), wanted[name])


def test_calls_that_ran_op_by_op_are_saved(tmp_path, caplog):
    class Speller(tf.Module):
        def __init__(self):
            super().__init__()
            options = {"vocabulary": ["a", "b"], "mask_token": None}
            self.look_up = layers.StringLookup(**options)
            self.invert = layers.StringLookup(**options, invert=True)
            self.offset = tf.Variable(1.0)

        @tf.function
        def follow(self, texts, state=None):
            ids = self.look_up(tf.strings.unicode_split(texts, "UTF-8")).to_tensor()[:, -1]
            state = tf.cast(ids, tf.float32) * self.offset + (0.0 if state is None else state)
            return self.invert(tf.cast(state, tf.int64)), state

    speller = Speller()
    texts = tf.constant(["ba", "b"])
    _, state = speller.follow(texts)
    words, _ = speller.follow(texts, state=tf.zeros_like(state))
    assert "runs op by op" in caplog.text and len(speller.follow.python_calls) == 2
    tf.saved_model.save(speller, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    assert loaded.follow(texts)[0].numpy().tolist() == words.numpy().tolist() == [b"a", b"[UNK]"]
    assert loaded.follow(texts, state=state)[1].numpy().tolist() == [2, 0]


def test_loaded_signatures_have_unknown_ranks(saved):
    folder, _ = saved
    signature = tf.saved_model.load(folder / "ranks").signatures["serving_default"]
    assert signature.structured_input_signature[1]["x"].shape.rank is None
    assert signature.structured_outputs["scaled"].shape.rank is None
    with pytest.raises((TypeError, ValueError), match="shape"):
        signature(x=tf.zeros([1] * 7))


def test_models_have_their_variables_in_tensorflow(tmp_path):
    from meshflow.saved_model.graph.format.messages import SavedModel

    model = tf.keras.Sequential([tf.keras.Input([2]), layers.Dense(3), layers.BatchNormalization()])
    tf.saved_model.save(model, tmp_path / "model")
    content = SavedModel.FromString((tmp_path / "model" / "saved_model.pb").read_bytes())
    objects = content.meta_graphs[0].object_graph_def
    root = {c.local_name: c.node_id for c in objects.nodes[0].children}
    counts = {
        name: len(objects.nodes[root[name]].children)
        for name in ("variables", "trainable_variables", "non_trainable_variables")
    }
    assert counts == {"variables": 6, "trainable_variables": 4, "non_trainable_variables": 2}


def test_loaded_functions_are_saved_again_with_defaults(tmp_path):
    model = tf.keras.Sequential([tf.keras.Input([2]), layers.Dense(3), layers.Dropout(0.5)])
    tf.saved_model.save(model, tmp_path / "once")
    tf.saved_model.save(tf.saved_model.load(tmp_path / "once"), tmp_path / "again")
    x = np.ones([3, 2], np.float32)
    assert_close(tf.saved_model.load(tmp_path / "again")(x), model(x), 1e-6)


def test_slices_of_unknown_size(tmp_path):
    class Positions(tf.Module):
        def __init__(self):
            self.table = tf.Variable(np.arange(40.0).reshape(10, 4))

        @tf.function(input_signature=[tf.TensorSpec([2, None], tf.float32)])
        def encode(self, x):
            size = tf.shape(x)[1]
            rows = self.table[:size], self.table[-size:], tf.slice(x, [0, 1], [2, size - 1])
            return *rows, x[:, : size // 2], x[:, size - 1], tf.linalg.diag(x)

    module = Positions()
    tf.saved_model.save(module, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    for size in (3, 8, 12):
        x = tf.constant(np.arange(2.0 * size).reshape(2, size), tf.float32)
        for result, expected in zip(loaded.encode(x), module.encode(x), strict=True):
            np.testing.assert_array_equal(result, expected)
        assert loaded.encode(x)[0].shape == (min(size, 10), 4)


def test_restored_functions_accept_sizes_of_zero(tmp_path):
    model = tf.keras.Sequential(
        [
            tf.keras.Input((6, 3)),
            tf.keras.layers.Conv1D(4, 3, activation="relu"),
            tf.keras.layers.BatchNormalization(),
            tf.keras.layers.GlobalMaxPooling1D(),
            tf.keras.layers.Dense(2),
        ]
    )
    model.total = tf.function(
        lambda x: tf.reduce_sum(x, 1), input_signature=[tf.TensorSpec([None, None])]
    )
    tf.saved_model.save(model, str(tmp_path))
    restored = tf.saved_model.load(str(tmp_path))
    signature = restored.signatures["serving_default"]
    for count in (2, 0, 3, 0):
        (outputs,) = signature(tf.ones([count, 6, 3])).values()
        assert outputs.shape == (count, 2)
        np.testing.assert_allclose(outputs, model(tf.ones([count, 6, 3])), rtol=1e-5)
    for shape in [(2, 0), (0, 3), (0, 0)]:
        np.testing.assert_array_equal(restored.total(tf.ones(shape)), np.zeros(shape[0]))
    x = tf.ones([0, 3])
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = restored.total(x)
    assert tape.gradient(total, x).shape == (0, 3)


class Serializer(tf.Module):
    """Functions with serialized tensors."""

    @tf.function(input_signature=[Spec([None, 2])])
    def dense(self, x):
        return tf.io.serialize_tensor(x * 2.0)

    @tf.function(input_signature=[tf.SparseTensorSpec([None, 3])])
    def sparse(self, x):
        return tf.io.serialize_sparse(x)


def test_serialized_tensors(tmp_path):
    module = Serializer()
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    for rows in (1, 3):
        x = tf.reshape(tf.range(2.0 * rows), [rows, 2])
        text = loaded.dense(x)
        assert text.numpy() == module.dense(x).numpy()
        assert tf.io.parse_tensor(text, tf.float32).numpy().tolist() == (x * 2.0).numpy().tolist()
        sparse = tf.sparse.from_dense(tf.eye(rows, 3))
        assert loaded.sparse(sparse).numpy().tolist() == module.sparse(sparse).numpy().tolist()


def test_unknown_sizes_that_are_combined_with_known_ones(tmp_path):
    module = tf.Module()
    module.v = tf.Variable([3.0, 2.0, 8.0])
    signature = [tf.TensorSpec([None]), tf.TensorSpec([None], tf.bool)]
    module.f = tf.function(
        lambda x, m: tf.reduce_sum(tf.where(m, x * module.v, 0.0)), input_signature=signature
    )
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    assert float(loaded.f([1.0, 2.0, 3.0], [True, False, True])) == 27
    with pytest.raises(tf.errors.InvalidArgumentError, match="Incompatible shapes"):
        loaded.f(tf.ones([7]), tf.ones([7], tf.bool))


def test_saved_top_k_needs_k_columns(tmp_path):
    module = tf.Module()
    module.f = tf.function(
        lambda x: tf.math.top_k(x, 2).indices, input_signature=[tf.TensorSpec([None, None])]
    )
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    assert loaded.f([[1.0, 5.0, 3.0]]).numpy().tolist() == [[1, 2]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="at least k columns"):
        loaded.f([[1.0]])
