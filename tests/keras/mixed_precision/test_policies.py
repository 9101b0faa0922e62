"""Test policies: names, configurations, and their effect on layers."""

import logging
import pickle

import numpy as np
import pytest

import meshflow as tf

mixed_precision = tf.keras.mixed_precision


@pytest.fixture(autouse=True)
def float32_again():
    yield
    mixed_precision.set_global_policy("float32")


def test_policies_in_configurations_of_layers():
    make = tf.keras.layers.Dense
    module = {"module": "keras.mixed_precision", "registered_name": None}
    mixed = {"class_name": "Policy", "config": {"name": "mixed_float16"}, **module}
    assert make(1, dtype="mixed_float16").get_config()["dtype"] == mixed
    assert make(1, dtype=mixed_precision.Policy("float64")).get_config()["dtype"] == "float64"
    old = {"class_name": "PolicyV1", "config": {"name": "mixed_float16", "loss_scale": None}}
    layer = make(1, dtype=mixed_precision.experimental.Policy("mixed_float16", loss_scale=None))
    assert layer.get_config()["dtype"] == {"module": None, **old, "registered_name": "PolicyV1"}
    assert make.from_config(layer.get_config()).get_config()["dtype"] == mixed


def test_a_layer_may_infer_its_dtype():
    layer = tf.keras.layers.Dense(1, dtype=mixed_precision.Policy("_infer"))
    assert layer.dtype is None and layer.get_config()["dtype"] is None
    assert layer(tf.ones([1, 2], tf.float16)).dtype == layer.kernel.dtype == tf.float16
    assert layer.dtype == "float16"


def test_policy_names():
    with pytest.raises(ValueError, match=r"'mixed_bfloat16', 'mixed_float16'.*'float32'"):
        mixed_precision.Policy("mixed_float12")
    with pytest.raises(ValueError, match="have been removed"):
        mixed_precision.Policy("float16_with_float32_vars")
    mixed_precision.set_dtype_policy("mixed_bfloat16")
    assert mixed_precision.dtype_policy().name == "mixed_bfloat16"


def test_custom_policy_classes_round_trip():
    class Own(mixed_precision.Policy):
        pass

    layer = tf.keras.layers.Dense(1, dtype=Own("float32"))
    config = layer.get_config()
    own = {"class_name": "Own", "config": {"name": "float32"}}
    assert config["dtype"] == {"module": None, **own, "registered_name": "Own"}
    with tf.keras.utils.custom_object_scope({"Own": Own}):
        assert type(tf.keras.layers.Dense.from_config(config).dtype_policy) is Own


def test_a_loss_scale_without_float16_is_warned_of(caplog):
    old = mixed_precision.experimental
    with caplog.at_level(logging.WARNING, "meshflow"):
        old.Policy("mixed_float16", loss_scale=2.0)
        old.Policy("float32")
        assert not caplog.records
        old.Policy("float32", loss_scale=2.0)
    assert "only useful for float16 policies" in caplog.text and "loss_scale=2.0" in caplog.text


def test_float16_requires_loss_scaling():
    with tf.distribute.experimental.CentralStorageStrategy().scope():
        with pytest.raises(ValueError, match=r"CentralStorageStrategy.*mixed_float16"):
            tf.keras.layers.Dense(1, dtype="mixed_float16")
        tf.keras.layers.Dense(1, dtype="mixed_bfloat16")


def test_layers_of_before_2_4_read_the_private_compute_dtype():
    layer = tf.keras.layers.Dense(1, dtype="mixed_bfloat16")
    assert layer._compute_dtype == layer.compute_dtype == "bfloat16"


def test_rows_are_written_in_the_variable_dtype():
    class Counter(tf.keras.layers.Layer):
        def build(self, input_shape):
            self.total = self.add_weight("total", (2,), initializer="ones", trainable=False)

        def call(self, inputs):
            rows = tf.IndexedSlices(tf.constant([2.0**-12]), tf.constant([0]))
            self.total.scatter_add(rows)
            self.total.scatter_nd_add([[1]], [2.0**-11])
            return inputs * self.total

    counter = Counter(dtype="mixed_float16")
    assert counter(tf.ones([2])).dtype == tf.float16
    np.testing.assert_array_equal(counter.total.numpy() - 1, [2.0**-12, 2.0**-11])


def test_rows_of_a_table_are_cast_instead_of_the_table():
    mixed_precision.set_global_policy("mixed_bfloat16")
    layer = tf.keras.layers.Embedding(50, 4)
    assert layer(tf.constant([[0, 1]])).dtype == tf.bfloat16

    @tf.function
    def lookup(ids):
        with tf.GradientTape() as tape:
            rows = layer(ids)
        return rows, tape.gradient(rows, layer.embeddings)

    casts = [
        eqn.outvars[0].aval.shape
        for eqn in lookup.get_concrete_function(tf.constant([3, 3])).closed_jaxpr.eqns
        if eqn.primitive.name == "convert_element_type"
    ]
    assert (50, 4) not in casts, casts
    rows, gradient = lookup(tf.constant([3, 3]))
    np.testing.assert_array_equal(rows[0], tf.cast(layer.embeddings, tf.bfloat16)[3])
    assert gradient.dtype == tf.float32
    np.testing.assert_array_equal(tf.convert_to_tensor(gradient)[3], [2, 2, 2, 2])


def test_encodings_and_interpolation_return_float32_under_every_policy():
    layers = tf.keras.layers
    mixed_precision.set_global_policy("mixed_bfloat16")
    assert layers.CategoryEncoding(3)([[1, 2]]).dtype == tf.float32
    assert layers.CategoryEncoding(3, dtype="float64")([[1, 2]]).dtype == tf.float64
    larger = layers.UpSampling2D(interpolation="bilinear")
    assert larger(tf.ones([1, 2, 2, 1])).dtype == tf.float32
    assert larger(tf.keras.Input([2, 2, 1])).dtype == tf.float32
    assert layers.UpSampling2D()(tf.ones([1, 2, 2, 1])).dtype == tf.bfloat16


def test_layer_normalization_scales_in_the_variable_dtype():
    x = 1000.0 + np.arange(8, dtype="float32").reshape(2, 4)
    for policy, kept in (("bfloat16", "bfloat16"), ("mixed_bfloat16", "float32")):
        for layer in (
            tf.keras.layers.LayerNormalization(dtype=policy),
            tf.keras.layers.GroupNormalization(2, dtype=policy),
        ):
            assert layer(x).dtype == tf.bfloat16
            assert [v.dtype.name for v in layer.weights] == [kept, kept]
    batch = tf.keras.layers.BatchNormalization(dtype="bfloat16")
    batch(x)
    assert {v.dtype.name for v in batch.weights} == {"float32"}


def test_spectral_normalization_iterates_in_the_variables_dtype():
    x = tf.ones([1, 3])
    mixed_precision.set_global_policy("mixed_bfloat16")
    layer = tf.keras.layers.SpectralNormalization(tf.keras.layers.Dense(2), power_iterations=20)
    assert layer(x, training=True).dtype == tf.bfloat16
    assert layer.vector_u.dtype == tf.float32
    largest = tf.linalg.svd(layer.layer.kernel, compute_uv=False)[0]
    np.testing.assert_allclose(largest, 1.0, atol=1e-4)


def test_unpickled_weights_are_still_cast():
    mixed_precision.set_global_policy("mixed_bfloat16")
    layer = tf.keras.layers.Dense(2, kernel_constraint="max_norm")
    outputs = layer(tf.ones([1, 3]))
    again = pickle.loads(pickle.dumps(layer))
    np.testing.assert_array_equal(again(tf.ones([1, 3])), outputs)
    assert again.kernel.name == layer.kernel.name and again.kernel.constraint is not None


@pytest.mark.parametrize("kind", ["Attention", "AdditiveAttention"])
def test_attention_computes_in_its_own_policy(kind):
    layer = getattr(tf.keras.layers, kind)(dtype="mixed_bfloat16")
    assert layer([tf.ones((1, 2, 3)), tf.ones((1, 4, 3))]).dtype == tf.bfloat16
