"""Test `tf.saved_model`: loaded objects compute, train and are named like saved ones, without their
code."""

import json
import sys

import jax
import numpy as np
import pytest

import forked
import meshflow as tf
from helpers import read_manifest
from meshflow.core.functions.call_arguments import CallArguments
from meshflow.saved_model.programs import stablehlo
from meshflow.saved_model.saving import function_saver

L = tf.keras.layers


class Adder(tf.Module):
    """Variables in attributes and lists, two functions, a counter that a function writes."""

    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(2.0, name="weight")
        self.parts = [tf.Variable([1.0, 2.0]), tf.Variable(3.0, trainable=False)]
        self.calls = tf.Variable(0, trainable=False)
        self.table = {"a": tf.constant([5.0, 6.0])}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def __call__(self, x):
        self.calls.assign_add(1)
        return x * self.weight + self.parts[1]

    @tf.function
    def scaled(self, x, times=2):
        return {"scaled": x * tf.cast(times, x.dtype), "others": [x + self.table["a"], None]}


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "saved")


@pytest.fixture
def loaded(folder):
    module = Adder()
    module(tf.constant([1.0]))
    module.scaled(tf.constant([1.0, 2.0]))
    module.scaled(tf.constant([1.0, 2.0]), times=5)
    tf.saved_model.save(module, folder)
    return tf.saved_model.load(folder)


def test_functions_and_variables(loaded):
    np.testing.assert_array_equal(loaded([1.0, 2.0, 3.0]), [5.0, 7.0, 9.0])
    assert int(loaded.calls) == 2  # saved after one call
    assert [v.numpy().tolist() for v in loaded.parts] == [[1.0, 2.0], 3.0]
    assert len(loaded.trainable_variables) == 2 and len(loaded.variables) == 4
    assert loaded.weight.name == "weight:0"
    loaded.weight.assign(10.0)
    np.testing.assert_array_equal(loaded(tf.constant([1.0])), [13.0])


def test_the_alternative_that_fits(loaded):
    x = tf.constant([1.0, 2.0])
    np.testing.assert_array_equal(loaded.scaled(x)["scaled"], [2.0, 4.0])
    for found in (loaded.scaled(x, 5), loaded.scaled(x, times=5), loaded.scaled(times=5, x=x)):
        np.testing.assert_array_equal(found["scaled"], [5.0, 10.0])
    np.testing.assert_array_equal(loaded.scaled(x)["others"][0], [6.0, 8.0])
    assert loaded.scaled(x)["others"][1] is None
    for wrong in ((tf.constant([1, 2]),), (tf.zeros([3]),), (x, 7)):
        with pytest.raises(ValueError, match="Could not find matching concrete function"):
            loaded.scaled(*wrong)


def test_gradients_and_training(loaded):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(loaded(tf.constant([1.0, 2.0])) ** 2)
    # The sum of (x w + 3) ** 2 at w = 2.
    assert float(tape.gradient(loss, loaded.weight)) == 2 * (5 * 1 + 7 * 2)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(loaded(x) ** 2)
        loaded.weight.assign_sub(0.01 * tape.gradient(loss, loaded.weight))
        return loss

    losses = [float(step(tf.constant([1.0, 2.0]))) for _ in range(3)]
    assert losses[0] > losses[1] > losses[2]


def test_in_a_process_without_the_code(loaded, folder):
    program = (
        "import meshflow as tf\n"
        f"loaded = tf.saved_model.load({folder!r})\n"
        "assert loaded([1.0]).numpy().tolist() == [5.0]\n"
        "assert type(loaded).__name__ != 'Adder'"
    )
    assert forked.run(program) == [0, ""]


def test_loaded_objects_are_saved_again(loaded, tmp_path):
    loaded([1.0])
    loaded.weight.assign(4.0)
    tf.saved_model.save(loaded, tmp_path / "again")
    again = tf.saved_model.load(tmp_path / "again")
    assert float(again.weight) == 4.0


def test_signatures(folder):
    class Pair(tf.Module):
        @tf.function(
            input_signature=[tf.TensorSpec([None, 2], name="left"), tf.TensorSpec([None, 2])]
        )
        def both(self, left, right):
            return left + right, left - right

        @tf.function
        def named(self, x):
            return {"twice": 2 * x}

    pair = Pair()
    named = pair.named.get_concrete_function(tf.TensorSpec([None, 3], name="data"))
    tf.saved_model.save(pair, folder, signatures={"both": pair.both, "named": named})
    signatures = tf.saved_model.load(folder).signatures
    assert sorted(signatures) == ["both", "named"]
    one = tf.ones([4, 2])
    found = signatures["both"](left=one, right=one)
    np.testing.assert_array_equal(found["output_0"], 2 * np.ones([4, 2]))
    np.testing.assert_array_equal(found["output_1"], np.zeros([4, 2]))
    assert signatures["named"].structured_outputs["twice"].shape.as_list() == [None, 3]
    assert signatures["named"].structured_input_signature[1]["data"].shape.as_list() == [None, 3]
    np.testing.assert_array_equal(signatures["named"](tf.ones([1, 3]))["twice"], [[2.0, 2.0, 2.0]])
    with pytest.raises(TypeError, match="takes the tensors"):
        signatures["both"](left=one)
    with pytest.raises(TypeError, match="named takes"):
        signatures["named"](data=tf.ones([1, 4]))


def test_the_only_function_is_the_signature(folder):
    class Square(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([])])
        def square(self, x):
            return x * x

    tf.saved_model.save(Square(), folder)
    found = tf.saved_model.load(folder).signatures[tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY]
    assert float(found(x=tf.constant(3.0))["output_0"]) == 9.0


def models():
    image = tf.keras.Sequential(
        [
            L.Conv2D(4, 3, activation="relu", input_shape=(8, 8, 3)),
            L.BatchNormalization(),
            L.MaxPooling2D(),
            L.Flatten(),
            L.Dropout(0.5),
            L.Dense(2, name="out"),
        ]
    )
    text = tf.keras.Sequential(
        [
            tf.keras.Input([None], dtype="int64"),
            L.Embedding(9, 4),
            L.Bidirectional(L.LSTM(3)),
            L.Dense(2),
        ]
    )
    tokens = tf.keras.Input((6, 8))
    attended = L.LayerNormalization()(tokens + L.MultiHeadAttention(2, 4)(tokens, tokens))
    attention = tf.keras.Model(tokens, L.Dense(2)(L.GlobalAveragePooling1D()(attended)))
    rng = np.random.default_rng(0)
    return {
        "image": (image, rng.normal(size=(5, 8, 8, 3)).astype("float32")),
        "text": (text, rng.integers(0, 9, size=(5, 7))),
        "attention": (attention, rng.normal(size=(5, 6, 8)).astype("float32")),
    }


@pytest.mark.parametrize("kind", ["image", "text", "attention"])
def test_keras_models(kind, folder):
    model, x = models()[kind]
    model.compile("adam", "mse")
    model.fit(x, np.ones([5, 2]), verbose=0)
    model.save(folder)
    expected = model.predict(x, verbose=0)
    loaded = tf.saved_model.load(folder)
    np.testing.assert_allclose(loaded(x), expected, rtol=1e-5, atol=1e-6)
    (output,) = loaded.signatures["serving_default"](tf.constant(x[:2])).values()
    np.testing.assert_allclose(output, expected[:2], rtol=1e-5, atol=1e-6)
    assert [v.shape for v in loaded.variables] == [v.shape for v in model.variables]
    assert len(loaded.trainable_variables) == len(model.trainable_variables)
    again = tf.keras.models.load_model(folder)
    np.testing.assert_array_equal(again.predict(x, verbose=0), expected)
    assert int(again.optimizer.iterations) == 1


def test_training_mode(folder):
    model, x = models()["image"]
    tf.saved_model.save(model, folder)
    loaded = tf.saved_model.load(folder)
    before = [v.numpy() for v in loaded.variables]
    first, second = loaded(x, training=True), loaded(x, training=True)
    assert np.abs(first - second).max() > 0  # dropout
    changed = [not np.array_equal(b, v) for b, v in zip(before, loaded.variables, strict=True)]
    assert sum(changed) == 2  # the moving averages


class Own(tf.keras.Model):
    """Define a subclassed model without a configuration."""

    def __init__(self, size):
        super().__init__()
        self.dense, self.norm = L.Dense(size), L.BatchNormalization()

    def call(self, inputs, training=None):
        return self.norm(self.dense(inputs), training=training)


def test_subclassed_models_without_their_class(folder):
    x, y = np.random.default_rng(0).normal(size=(16, 3)).astype("float32"), np.ones([16, 2])
    model = Own(2)
    model.compile("sgd", "mse", metrics=["mae"])
    model.fit(x, y, verbose=0)
    model.save(folder)
    loaded = tf.keras.models.load_model(folder)
    assert not isinstance(loaded, Own)
    np.testing.assert_allclose(loaded.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5)
    np.testing.assert_allclose(
        loaded.evaluate(x, y, verbose=0), model.evaluate(x, y, verbose=0), rtol=1e-5
    )
    np.testing.assert_allclose(
        loaded.fit(x, y, verbose=0).history["loss"],
        model.fit(x, y, verbose=0).history["loss"],
        rtol=1e-5,
    )
    assert [w.shape for w in loaded.weights] == [w.shape for w in model.weights]


def test_several_inputs_and_outputs(folder):
    a, b = tf.keras.Input((3,), name="a"), tf.keras.Input((2,), name="b", dtype="int32")
    joined = L.Concatenate()([a, L.Flatten()(L.Embedding(5, 2)(b))])
    model = tf.keras.Model({"a": a, "b": b}, {"p": L.Dense(1)(joined), "q": joined})
    model.export(folder)
    loaded = tf.saved_model.load(folder)
    values = {"a": np.ones([4, 3], "float32"), "b": np.ones([4, 2], "int32")}
    expected = model(values)
    found = loaded.signatures["serving_default"](**{k: tf.constant(v) for k, v in values.items()})
    for key in ("p", "q"):
        np.testing.assert_allclose(loaded(values)[key], expected[key], rtol=1e-6)
        np.testing.assert_allclose(found[key], expected[key], rtol=1e-6)


def test_under_a_strategy(folder):
    model, x = models()["attention"]
    model.save(folder)
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        loaded = tf.saved_model.load(folder)
        restored = tf.keras.models.load_model(folder)
    expected = model.predict(x, verbose=0)
    np.testing.assert_allclose(loaded(x), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(restored.predict(x, verbose=0), expected, rtol=1e-5, atol=1e-6)


def test_unsavable_objects(folder, caplog):
    class Printing(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([2])])
        def shown(self, x):
            return tf.numpy_function(lambda v: v, [x], tf.float32)

        @tf.function(input_signature=[tf.TensorSpec([None])])
        def sized(self, x):
            return tf.constant(np.ones(int(x.shape[0]), "float32"))

    module = Printing()
    tf.saved_model.save(module, folder)
    assert "calls Python while it runs" in caplog.text
    assert "needs the value of a size" in caplog.text
    with pytest.raises(tf.errors.UnimplementedError, match="calls Python"):
        tf.saved_model.save(module, folder, signatures=module.shown)
    with pytest.raises(ValueError, match="with an input_signature"):
        tf.saved_model.save(module, folder, signatures=lambda x: x)
    with pytest.raises(ValueError, match="trackable"):
        tf.saved_model.save(module.shown, folder)
    with pytest.raises(TypeError, match="not callable"):
        tf.saved_model.load(folder)(1.0)


def test_signatures_of_earlier_sizes_if_not_all_sizes_work(folder, caplog):
    class Flat(tf.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        @tf.function(input_signature=[tf.TensorSpec([None, None, None])])
        def __call__(self, x):
            return self.inner(tf.reshape(x, [-1, 6]))

    class Inner(tf.Module):
        @tf.function
        def __call__(self, x):
            return tf.reduce_sum(x, axis=1)

    module = Flat()
    x = tf.ones([2, 3, 2])
    module(x)
    tf.saved_model.save(module, folder)
    assert "saved only for the sizes it was called with" in caplog.text
    loaded = tf.saved_model.load(folder)
    for batch in (2, 5):
        np.testing.assert_array_equal(loaded(tf.ones([batch, 3, 2])), [6.0] * batch)
    with pytest.raises(ValueError, match="Could not find matching"):
        loaded(tf.ones([2, 6, 1]))


def test_ops_on_axes_that_may_be_empty_are_saved_for_any_size(folder):
    kernel = np.random.RandomState(0).normal(size=(3, 3, 2, 4)).astype(np.float32)
    crop = tf.keras.layers.Cropping2D(((0, 1), (0, 0)))

    class Summary(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, None, None, 2])])
        def __call__(self, x):
            # An image of 2 pixels has no position.
            y = tf.nn.conv2d(x, kernel, 1, "VALID")
            whole = tf.cast(10 * y, tf.int32)
            places = tf.argmax(y, 1), tf.argmin(whole, -2)
            extremes = tf.reduce_max(y, [1, 2]), tf.reduce_min(whole, [1, 2])
            # NaN is sorted as the greatest number, and behind the element that makes the axis longer.
            holes = tf.where(y > 1, np.float32(np.nan), y)
            ordered = tf.sort(holes, 1), tf.sort(whole, 2, "DESCENDING"), tf.argsort(holes, 1)
            indices = tf.argsort(y, 2, "DESCENDING")
            sums = tf.cumsum(y, 1), tf.math.cumprod(y, 2, exclusive=True, reverse=True)
            sums = *sums, tf.cumsum(whole, 2, reverse=True), tf.math.cumulative_logsumexp(y, 1)
            largest = *tf.math.top_k(y, 3), *tf.math.top_k(whole[..., 0], 1)
            shifted = tf.roll(y, 1, 1), tf.roll(whole, [1, -3], [2, 1])
            found = tf.math.in_top_k([0], tf.reduce_max(y[:1], [2, 3]), 1)
            moved = *largest, *shifted, found
            return (
                *extremes,
                *places,
                tf.norm(y, np.inf, 1),
                *ordered,
                indices,
                *sums,
                *moved,
                crop(y),
            )

    module = Summary()
    tf.saved_model.save(module, folder)
    loaded = tf.saved_model.load(folder)
    for shape in ((1, 4, 3, 2), (2, 6, 5, 2)):
        x = tf.constant(np.random.RandomState(1).normal(size=shape).astype(np.float32))
        for one, other in zip(loaded(x), module(x), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_folders_without_a_model(tmp_path, monkeypatch):
    assert not tf.saved_model.contains_saved_model(tmp_path)
    with pytest.raises(OSError, match="SavedModel file does not exist"):
        tf.saved_model.load(tmp_path)
    tf.saved_model.save(tf.Module(), tmp_path / "empty", options=tf.saved_model.SaveOptions())
    assert tf.saved_model.contains_saved_model(tmp_path / "empty")
    assert (
        tf.saved_model.load(tmp_path / "empty", options=tf.saved_model.LoadOptions()).variables
        == ()
    )


def test_without_flatbuffers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    traced = stablehlo.trace_for_export(lambda x: x + 1, (tf.TensorSpec([None]),), {})
    monkeypatch.setattr(jax.export.Exported, "serialize", _no_flatbuffers)
    with pytest.raises(ImportError, match=r"meshflow-tf\[export\]"):
        stablehlo.serialize_program(stablehlo.export_traced(traced))


def _no_flatbuffers(*args, **kwargs):
    raise ImportError


def test_constants():
    names = (
        "SERVING",
        "TRAINING",
        "GPU",
        "TPU",
        "ASSETS_DIRECTORY",
        "VARIABLES_DIRECTORY",
        "VARIABLES_FILENAME",
    )
    found = [getattr(tf.saved_model, n) for n in names]
    assert found == ["serve", "train", "gpu", "tpu", "assets", "variables", "variables"]


def test_penalties_of_activities_are_means_over_batches_of_any_size(tmp_path, caplog):
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(2, activity_regularizer="l2", input_shape=(3,))]
    )
    x = tf.ones([5, 3])
    y = model(x)
    np.testing.assert_allclose(model.losses[0], 0.01 * np.sum(np.square(y)) / 5, rtol=1e-5)
    model.save(tmp_path / "model")
    assert not caplog.records
    served = tf.saved_model.load(tmp_path / "model").signatures["serving_default"]
    np.testing.assert_allclose(served(x)["dense"], y, rtol=1e-6)


def test_sizes_of_programs_for_any_size():
    """`tf.shape` of a tensor of any size can be the size of another."""

    def function(x):
        rows, columns = tf.shape(x)[0], x.shape[1]
        again = tf.reshape(tf.reshape(x, [-1]), [rows, columns])
        return again + tf.zeros(tf.shape(x)), tf.size(x), x / tf.cast(rows, x.dtype)

    traced = stablehlo.trace_for_export(function, (tf.TensorSpec([None, 3]),), {})
    program = stablehlo.deserialize_program(
        stablehlo.serialize_program(stablehlo.export_traced(traced))
    )
    x = np.arange(12, dtype="float32").reshape(4, 3)
    same, count, shared = program.call(x)
    np.testing.assert_array_equal(same, x)
    assert int(count) == 12
    np.testing.assert_allclose(shared, x / 4)


def test_two_inputs_of_any_equal_sizes_with_an_assertion_and_a_range(tmp_path):
    class Masked(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)] * 2)
        def __call__(self, ids, mask):
            tf.debugging.assert_less(ids, 100)
            filled = tf.fill(tf.shape(ids), 1) * tf.range(tf.shape(ids)[1])
            return ids * mask + filled

    tf.saved_model.save(Masked(), str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    for columns in (2, 3):
        ids, mask = tf.ones([2, columns], tf.int32), tf.ones([2, columns], tf.int32)
        assert loaded(ids, mask)[1].numpy().tolist() == [1 + c for c in range(columns)]


def _double(x):
    return jax.ffi.ffi_call("foreign_code", jax.ShapeDtypeStruct((3,), "float32"))(x)


@pytest.mark.parametrize("in_gradient", [False, True])
def test_programs_call_no_foreign_code(in_gradient):
    @jax.custom_vjp
    def own(x):
        return x if in_gradient else _double(x)

    own.defvjp(lambda x: (own(x), None), lambda _, g: (_double(g) if in_gradient else g,))
    allowed = [jax.export.DisabledSafetyCheck.custom_call("foreign_code")]
    spec = jax.ShapeDtypeStruct((3,), "float32")
    program = jax.export.export(jax.jit(own), disabled_checks=allowed)(spec)
    data = bytes(program.serialize(vjp_order=1))
    call = stablehlo.deserialize_program(data).call
    run = (lambda x: jax.vjp(call, x)[1](x)) if in_gradient else call
    with pytest.raises(tf.errors.InvalidArgumentError, match="foreign_code"):
        jax.jit(run).lower(spec)


@pytest.mark.parametrize("name", ["__class__", "__dict__", "../../x"])
def test_names_in_manifests(tmp_path, name):
    module = tf.Module()
    module.weight = tf.Variable([1.0])
    tf.saved_model.save(module, str(tmp_path / "m"))
    manifest = read_manifest(tmp_path / "m")
    nodes = manifest["saved_model"]["nodes"]
    if name.startswith("__"):
        nodes[0]["children"] = {name: place for place in nodes[0]["children"].values()}
    else:
        variable = next(n for n in nodes if n["kind"] == "variable")
        manifest["arrays"][name] = manifest["arrays"].pop(variable["file"])
        variable["file"] = name
    (tmp_path / "m" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(tf.errors.DataLossError, match="damaged"):
        tf.saved_model.load(str(tmp_path / "m"))


def test_signatures_are_compiled_for_many_sizes_without_a_warning(folder, caplog):
    tf.saved_model.save(Adder(), folder)
    loaded = tf.saved_model.load(folder)
    signature = loaded.signatures["serving_default"]
    for rows in range(1, 8):
        assert signature(x=tf.ones([rows]))
        assert loaded(tf.ones([rows])).shape == [rows]
    assert "retracing" not in caplog.text


def test_functions_that_parse_examples(tmp_path):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="rows")])
    def parsed(rows):
        features = {
            "x": tf.io.FixedLenFeature([2], tf.float32),
            "k": tf.io.FixedLenFeature([], tf.int64, default_value=7),
            "word": tf.io.FixedLenFeature([], tf.string, default_value="Tea"),
        }
        found = tf.io.parse_example(rows, features)
        return {
            "y": tf.reduce_sum(found["x"], -1) * tf.cast(found["k"], tf.float32),
            "word": tf.strings.lower(found["word"]),
        }

    def row(**features):
        made = tf.train.Example()
        for name, value in features.items():
            feature = made.features.feature[name]
            kind = {float: feature.float_list, int: feature.int64_list, bytes: feature.bytes_list}
            kind[type(value[0])].value.extend(value)
        return made.SerializeToString()

    module = tf.Module()
    module.parsed = parsed
    tf.saved_model.save(module, str(tmp_path / "m"), {"serving_default": parsed})
    rows = tf.constant([row(x=[1.0, 2.0]), row(x=[0.5, 0.0], k=[2], word=[b"Milk"])])
    for _ in range(2):
        signature = tf.saved_model.load(str(tmp_path / "m")).signatures["serving_default"]
        found = signature(rows=rows)
        assert found["y"].numpy().tolist() == [21.0, 1.0]
        assert found["word"].numpy().tolist() == [b"tea", b"milk"]
        with pytest.raises(tf.errors.InvalidArgumentError, match="Feature: x"):
            signature(rows=tf.constant([row(k=[1])]))
        # Once more by the graph that TensorFlow reads.
        (tmp_path / "m" / "manifest.json").unlink(missing_ok=True)
    words = tf.io.VarLenFeature(tf.string)
    module.words = tf.function(
        lambda rows: tf.sparse.to_dense(tf.io.parse_example(rows, {"w": words})["w"]),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    with pytest.raises(tf.errors.UnimplementedError, match="variable length \\('w'\\)"):
        tf.saved_model.save(module, str(tmp_path / "n"), {"serving_default": module.words})


def test_equal_functions_share_a_program_but_not_custom_gradients(tmp_path, monkeypatch):
    """Functions may do the same forwards and have other gradients."""
    made = []
    serialized = stablehlo.serialize_program
    counted = lambda program: made.append(program) or serialized(program)
    monkeypatch.setattr("meshflow.saved_model.saving.function_saver.serialize_program", counted)

    def with_gradient(factor):
        @tf.custom_gradient
        def run(x):
            return 2.0 * x, lambda upstream: factor * upstream

        return run

    module = tf.Module()
    spec = tf.TensorSpec([None], tf.float32)
    calls = {"one": lambda x: 2.0 * x, "two": lambda x: 2.0 * x}
    calls |= {"three": with_gradient(3.0), "five": with_gradient(5.0)}
    for name, call in calls.items():
        setattr(module, name, tf.function(call, input_signature=[spec]))
    tf.saved_model.save(module, tmp_path / "model")
    loaded = tf.saved_model.load(tmp_path / "model")
    for name, slope in {"one": 2.0, "two": 2.0, "three": 3.0, "five": 5.0}.items():
        x = tf.constant([1.0, 4.0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = getattr(loaded, name)(x)
        assert y.numpy().tolist() == [2.0, 8.0]
        assert tape.gradient(y, x).numpy().tolist() == [slope, slope]
    assert len(made) == len(list((tmp_path / "model").glob("program_*"))) == 3


def _returning(make):
    module = tf.Module()
    module.run = tf.function(
        make, input_signature=[{"a": tf.TensorSpec([2]), "b": tf.TensorSpec([])}]
    )
    return module


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda d: {"a": {"b": d["a"]}}, "'a'.*tensor, a list of tensors"),
        (lambda d: [d["a"], [d["b"]]], "'output_1'.*flat"),
        (lambda d: {"a": None}, "None of type NoneType"),
        (lambda d: {1: d["a"]}, "key 1, which is not a string"),
    ],
)
def test_signatures_return_flat_tensors(folder, make, said):
    module = _returning(make)
    with pytest.raises(ValueError, match=f"signature 'serving_default' takes or returns .*{said}"):
        tf.saved_model.save(module, folder, signatures=module.run)
    # Without a requested signature there is none, and the function is unchanged.
    tf.saved_model.save(module, folder)
    assert not tf.saved_model.load(folder).signatures


def test_parts_of_arguments_and_results_of_signatures_have_names(folder):
    module = _returning(lambda d: (d["a"] + d["b"], 3.0))
    tf.saved_model.save(module, folder, signatures=module.run)
    signature = tf.saved_model.load(folder).signatures["serving_default"]
    assert sorted(signature.structured_input_signature[1]) == ["d", "d_1"]
    assert [s.name for s in signature.structured_outputs.values()] == ["output_0", "output_1"]
    found = signature(d=tf.constant([1.0, 2.0]), d_1=tf.constant(3.0))
    assert found["output_0"].numpy().tolist() == [4.0, 5.0] and float(found["output_1"]) == 3.0
    with pytest.raises(TypeError, match="names of signatures must be strings, got 1"):
        tf.saved_model.save(module, folder, signatures={1: module.run})


def _count_traces(function, specs, folder, signatures):
    """Save a function of these specs; return the number of its traces, of the exports, and the loaded module."""
    module, traces = tf.Module(), []

    def counted(*args):
        traces.append(args)
        return function(*args)

    module.run = tf.function(counted, input_signature=specs)
    exports, export = [], function_saver.export_traced
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            function_saver, "export_traced", lambda traced: exports.append(traced) or export(traced)
        )
        tf.saved_model.save(module, folder, {"named": module.run} if signatures else {})
    return len(traces), len(exports), tf.saved_model.load(folder)


@pytest.mark.parametrize("names", ["xy", "yx"])
def test_a_function_is_not_traced_again_as_a_signature(folder, names):
    specs = [tf.TensorSpec([None], tf.float32, name) for name in names]

    def subtract(a, b):
        return {"difference": a - b, "b": b * 2.0}

    traces, exports, _ = _count_traces(subtract, specs, folder, False)
    again = _count_traces(subtract, specs, folder, True)
    # Arguments in the order of their names are those of the same program.
    assert again[:2] == (traces, exports + (names == "yx"))
    signature = again[2].signatures["named"]
    found = signature(**{names[0]: tf.constant([5.0, 6.0]), names[1]: tf.constant([1.0, 3.0])})
    assert found["difference"].numpy().tolist() == [4.0, 3.0]
    assert found["b"].numpy().tolist() == [2.0, 6.0]


def test_a_function_with_host_steps_is_not_traced_again_as_a_signature(folder):
    specs = [tf.TensorSpec([None], tf.int32, "values"), tf.TensorSpec([], tf.int32, "limit")]

    def select(values, limit):
        return tf.boolean_mask(values, values > limit), tf.unique(values)[0], limit

    traces, exports, _ = _count_traces(select, specs, folder, False)
    again = _count_traces(select, specs, folder, True)
    assert again[:2] == (traces, exports)
    signature = again[2].signatures["named"]
    for limit in (1, 5):
        found = signature(values=tf.constant([3, 1, 3]), limit=tf.constant(limit))
        assert found["output_0"].numpy().tolist() == [v for v in (3, 1, 3) if v > limit]
        assert found["output_1"].numpy().tolist() == [3, 1] and int(found["output_2"]) == limit


def test_a_text_function_is_not_traced_again_as_a_signature(folder):
    specs = [tf.TensorSpec([None], tf.string, "texts"), tf.TensorSpec([None], tf.int32, "count")]

    def extend(texts, count):
        return tf.strings.join([texts, tf.strings.as_string(count)], "-"), tf.strings.length(texts)

    traces, _, _ = _count_traces(extend, specs, folder, False)
    again = _count_traces(extend, specs, folder, True)
    assert again[0] == traces
    found = again[2].signatures["named"](texts=tf.constant(["a", "bc"]), count=tf.constant([3, 4]))
    assert found["output_0"].numpy().tolist() == [b"a-3", b"bc-4"]
    assert found["output_1"].numpy().tolist() == [1, 2]


def test_loaded_functions_take_tensors_without_binding(folder, monkeypatch):
    module = tf.Module()
    specs = [tf.RaggedTensorSpec([None, None], tf.int32), tf.TensorSpec([], tf.int32)]
    module.run = tf.function(lambda r, n: (r * n, r.to_tensor() + n), input_signature=specs)
    tf.saved_model.save(module, folder)
    loaded = tf.saved_model.load(folder)
    ragged = tf.ragged.constant([[1, 2], [], [3]])
    bound = []
    bind = CallArguments.canonicalize
    monkeypatch.setattr(
        CallArguments, "canonicalize", lambda *args: bound.append(args) or bind(*args)
    )
    for n in (2, 3):
        scaled, dense = loaded.run(ragged, tf.constant(n))
        assert scaled.to_list() == [[n, 2 * n], [], [3 * n]]
        assert dense.numpy().tolist() == [[1 + n, 2 + n], [n, n], [3 + n, n]]
    assert not bound
