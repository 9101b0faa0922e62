"""Test every layer in common checks; numbers are compared with NumPy."""

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close
from meshflow.keras import layers

IMAGE, SEQUENCE, VECTOR, VOLUME = (6, 6, 4), (6, 4), (4,), (4, 4, 4, 2)

CASES = [
    (layers.Dense, {"units": 3, "activation": "relu"}, VECTOR),
    (layers.Dense, {"units": 3}, SEQUENCE),
    (layers.Activation, {"activation": "tanh"}, VECTOR),
    (layers.Flatten, {}, IMAGE),
    (layers.Flatten, {"data_format": "channels_first"}, IMAGE),
    (layers.Reshape, {"target_shape": (-1, 2)}, SEQUENCE),
    (layers.Permute, {"dims": (2, 1)}, SEQUENCE),
    (layers.RepeatVector, {"n": 3}, VECTOR),
    (layers.Masking, {}, SEQUENCE),
    (layers.Identity, {}, VECTOR),
    (layers.ActivityRegularization, {"l2": 0.1}, VECTOR),
    (layers.Dropout, {"rate": 0.5}, VECTOR),
    (layers.SpatialDropout1D, {"rate": 0.5}, SEQUENCE),
    (layers.SpatialDropout2D, {"rate": 0.5}, IMAGE),
    (layers.GaussianNoise, {"stddev": 0.5}, VECTOR),
    (layers.GaussianDropout, {"rate": 0.5}, VECTOR),
    (layers.AlphaDropout, {"rate": 0.5}, VECTOR),
    (layers.Conv1D, {"filters": 3, "kernel_size": 3, "padding": "causal"}, SEQUENCE),
    (layers.Conv1D, {"filters": 3, "kernel_size": 2, "dilation_rate": 2}, SEQUENCE),
    (layers.Conv2D, {"filters": 4, "kernel_size": 3, "strides": 2, "padding": "same"}, IMAGE),
    (
        layers.Conv2D,
        {"filters": 4, "kernel_size": (2, 3), "groups": 2, "activation": "relu"},
        IMAGE,
    ),
    (layers.Conv3D, {"filters": 2, "kernel_size": 2}, VOLUME),
    (layers.Conv1DTranspose, {"filters": 3, "kernel_size": 3, "strides": 2}, SEQUENCE),
    (
        layers.Conv2DTranspose,
        {"filters": 3, "kernel_size": 3, "strides": 2, "padding": "same"},
        IMAGE,
    ),
    (
        layers.Conv2DTranspose,
        {"filters": 3, "kernel_size": 3, "strides": 2, "output_padding": 1},
        IMAGE,
    ),
    (layers.Conv3DTranspose, {"filters": 2, "kernel_size": 2}, VOLUME),
    (layers.DepthwiseConv2D, {"kernel_size": 3, "depth_multiplier": 2}, IMAGE),
    (layers.SeparableConv2D, {"filters": 3, "kernel_size": 3}, IMAGE),
    (layers.SeparableConv1D, {"filters": 3, "kernel_size": 3}, SEQUENCE),
    (layers.MaxPooling1D, {}, SEQUENCE),
    (layers.MaxPooling2D, {"pool_size": 3, "strides": 2, "padding": "same"}, IMAGE),
    (layers.MaxPooling3D, {}, VOLUME),
    (layers.AveragePooling1D, {}, SEQUENCE),
    (layers.AveragePooling2D, {}, IMAGE),
    (layers.AveragePooling3D, {}, VOLUME),
    (layers.GlobalMaxPooling1D, {}, SEQUENCE),
    (layers.GlobalMaxPooling2D, {}, IMAGE),
    (layers.GlobalMaxPooling3D, {}, VOLUME),
    (layers.GlobalAveragePooling1D, {}, SEQUENCE),
    (layers.GlobalAveragePooling2D, {"keepdims": True}, IMAGE),
    (layers.GlobalAveragePooling3D, {}, VOLUME),
    (layers.UpSampling1D, {}, SEQUENCE),
    (layers.UpSampling2D, {"size": (2, 3)}, IMAGE),
    (layers.UpSampling3D, {}, VOLUME),
    (layers.ZeroPadding1D, {}, SEQUENCE),
    (layers.ZeroPadding2D, {"padding": ((1, 0), (2, 1))}, IMAGE),
    (layers.ZeroPadding3D, {}, VOLUME),
    (layers.Cropping1D, {}, SEQUENCE),
    (layers.Cropping2D, {}, IMAGE),
    (layers.Cropping3D, {}, VOLUME),
    (layers.BatchNormalization, {}, IMAGE),
    (layers.BatchNormalization, {"axis": 1, "scale": False}, IMAGE),
    (layers.LayerNormalization, {}, SEQUENCE),
    (layers.LayerNormalization, {"axis": [1, 2]}, SEQUENCE),
    (layers.GroupNormalization, {"groups": 2}, IMAGE),
    (layers.UnitNormalization, {}, VECTOR),
    (layers.ReLU, {"max_value": 1.0}, VECTOR),
    (layers.LeakyReLU, {}, VECTOR),
    (layers.PReLU, {"shared_axes": [1]}, SEQUENCE),
    (layers.ELU, {"alpha": 0.5}, VECTOR),
    (layers.ThresholdedReLU, {"theta": 0.5}, VECTOR),
    (layers.Softmax, {}, VECTOR),
    (layers.TimeDistributed, {"layer": layers.Dense(2)}, SEQUENCE),
    (layers.Rescaling, {"scale": 0.5, "offset": 1.0}, VECTOR),
]


@pytest.mark.parametrize(
    ("cls", "arguments", "shape"),
    CASES,
    ids=[f"{c.__name__}-{i}" for i, (c, _, _) in enumerate(CASES)],
)
def test_battery(cls, arguments, shape, rng):
    x = rng.normal(size=(2, *shape)).astype("float32")
    layer = cls(**arguments)
    symbolic = layer(tf.keras.Input(shape))
    eager = layer(x)
    assert eager.dtype == tf.float32 and tuple(eager.shape)[1:] == tuple(symbolic.shape)[1:]
    assert layer.compute_output_shape((2, *shape)).as_list() == eager.shape.as_list()
    compiled = tf.function(lambda t: layer(t))(tf.constant(x))
    assert_close(compiled, eager.numpy(), 1e-4, 1e-5)
    clone = cls.from_config(layer.get_config())
    clone(x)
    clone.set_weights(layer.get_weights())
    assert_close(clone(x), eager.numpy(), 1e-4, 1e-5)
    model = tf.keras.Sequential(
        [
            tf.keras.Input(shape),
            cls.from_config(layer.get_config()),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    assert np.isfinite(model.train_on_batch(x, np.ones((2, 1))))
    if not isinstance(layer, layers.TimeDistributed):
        half = cls.from_config({**layer.get_config(), "dtype": "mixed_bfloat16"})
        assert half(x).dtype == tf.bfloat16 and all(w.dtype == tf.float32 for w in half.weights)


def test_batch_normalization_numbers(rng):
    x = rng.normal(2.0, 3.0, size=(8, 5)).astype("float32")
    layer = layers.BatchNormalization(momentum=0.9)
    y = layer(x, training=True)
    assert_close(y, (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3), 1e-4)
    assert_close(layer.moving_mean, 0.1 * x.mean(0), 1e-4)
    assert_close(layer.moving_variance, 0.9 + 0.1 * x.var(0), 1e-4)
    images = rng.normal(size=(4, 3, 3, 2)).astype("float32")
    fused = layers.BatchNormalization(momentum=0.9)
    fused(images, training=True)
    assert_close(fused.moving_variance, 0.9 + 0.1 * images.var((0, 1, 2)) * 36 / 35, 1e-4)
    layer.trainable = False
    before = layer.moving_mean.numpy()
    assert_close(layer(x, training=True), layer(x).numpy())
    assert_close(layer.moving_mean, before)


def test_layer_and_group_normalization_numbers(rng):
    x = rng.normal(size=(2, 4, 6)).astype("float32")
    assert_close(
        layers.LayerNormalization()(x),
        (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-3),
        1e-4,
    )
    g = x.reshape(2, 4, 2, 3)
    assert_close(
        layers.GroupNormalization(2)(x),
        (
            (g - g.mean((1, 3), keepdims=True)) / np.sqrt(g.var((1, 3), keepdims=True) + 1e-3)
        ).reshape(x.shape),
        1e-4,
    )


def test_dropout_statistics_and_inference():
    tf.random.set_seed(2)
    layer = layers.Dropout(0.3, seed=1)
    x = np.ones((50, 100), np.float32)
    y = layer(x, training=True).numpy()
    assert abs((y == 0).mean() - 0.3) < 0.03 and abs(y.mean() - 1) < 0.05
    assert_close(layer(x), x)
    assert not np.allclose(y, layer(x, training=True))
    tf.random.set_seed(2)
    assert_close(layers.Dropout(0.3, seed=1)(x, training=True), y)


def test_merging(rng):
    a, b = (
        rng.normal(size=(2, 3, 4)).astype("float32"),
        rng.normal(size=(2, 3, 4)).astype("float32"),
    )
    for name, expected in [
        ("Add", a + b),
        ("Subtract", a - b),
        ("Multiply", a * b),
        ("Average", (a + b) / 2),
        ("Maximum", np.maximum(a, b)),
        ("Minimum", np.minimum(a, b)),
    ]:
        assert_close(getattr(layers, name)()([a, b]), expected)
        assert_close(getattr(layers, name.lower())([tf.constant(a), tf.constant(b)]), expected)
    assert_close(layers.Concatenate(1)([a, b]), np.concatenate([a, b], 1))
    assert_close(layers.Dot(axes=2)([a, b]), np.einsum("bij,bkj->bik", a, b), 1e-4)
    with pytest.raises(ValueError, match="matching shapes"):
        layers.Concatenate(1)([a, b[..., :2]])


@pytest.mark.parametrize("dtype", [None, "int32"])
def test_symbolic_embeddings_have_masks(dtype):
    embedded = layers.Embedding(4, 5, mask_zero=True)(tf.keras.Input([5], dtype=dtype))
    seen = []

    class Record(layers.Layer):
        def call(self, inputs, mask=None):
            seen.extend(mask)
            return inputs[0]

    Record()([embedded, embedded])
    assert embedded._keras_mask.shape.as_list() == [None, 5]
    assert seen and all(mask.dtype == tf.bool for mask in seen)


def test_embedding():
    layer = layers.Embedding(5, 3, mask_zero=True)
    y = layer(np.array([[1, 0, 4]]))
    assert_close(y[0, 2], layer.embeddings.numpy()[4])
    np.testing.assert_array_equal(y._keras_mask.numpy(), [[True, False, True]])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[0, 5\)"):
        layer(np.array([[7]]))


def test_multi_head_attention_over_several_dimensions(rng):
    """Test attention over sequences of the joined dimensions."""
    q, v = (rng.normal(size=(2, 3, n, 4)).astype("float32") for n in (2, 5))
    mask = rng.normal(size=(2, 2, 5)) > -0.5
    whole, inner = (
        layers.MultiHeadAttention(2, 3, attention_axes=axes, output_shape=(3, 2))
        for axes in (None, 2)
    )
    plain = layers.MultiHeadAttention(2, 3, output_shape=6)
    out, scores = whole(q, v, return_attention_scores=True)
    assert out.shape == (2, 3, 2, 3, 2) and scores.shape == (2, 2, 3, 2, 3, 5)
    masked = inner(q, v, attention_mask=mask)
    plain(q[:, 0], v[:, 0])
    for layer, given, other, kept, found in (
        (whole, q.reshape(2, 6, 4), v.reshape(2, 15, 4), None, out),
        (inner, q.reshape(6, 2, 4), v.reshape(6, 5, 4), np.repeat(mask, 3, 0), masked),
    ):
        shapes = [w.shape for w in plain.weights]
        values = zip(layer.get_weights(), shapes, strict=True)
        plain.set_weights([w.reshape(shape) for w, shape in values])
        wanted = plain(given, other, attention_mask=kept).numpy()
        assert_close(found, wanted.reshape(found.shape), 1e-5, 1e-6)
    assert whole.get_config()["attention_axes"] == (1, 2)
    with pytest.raises(ValueError, match="between batch and features"):
        layers.MultiHeadAttention(2, 3, attention_axes=3)(q, v)


def test_multi_head_attention_numbers(rng):
    q, v = (
        rng.normal(size=(2, 3, 4)).astype("float32"),
        rng.normal(size=(2, 5, 4)).astype("float32"),
    )
    layer = layers.MultiHeadAttention(num_heads=2, key_dim=3)
    out, weights = layer(q, v, return_attention_scores=True)
    wq, bq, wk, bk, wv, bv, wo, bo = layer.get_weights()
    query, key, value = (
        np.einsum("btd,dnh->btnh", s, w) + b for s, w, b in ((q, wq, bq), (v, wk, bk), (v, wv, bv))
    )
    scores = np.einsum("btnh,bsnh->bnts", query, key) / np.sqrt(3)
    p = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert_close(weights, p, 1e-4)
    assert_close(
        out, np.einsum("btnh,nhd->btd", np.einsum("bnts,bsnh->btnh", p, value), wo) + bo, 1e-4, 1e-5
    )
    causal = layer(q, q, use_causal_mask=True, return_attention_scores=True)[1].numpy()
    assert np.abs(np.triu(causal[0, 0], 1)).max() < 1e-6
    mask = np.zeros((2, 3, 5), bool)
    mask[..., :2] = True
    assert (
        np.abs(
            layer(q, v, attention_mask=mask, return_attention_scores=True)[1].numpy()[..., 2:]
        ).max()
        < 1e-6
    )


@pytest.mark.parametrize("kind", [layers.Attention, layers.AdditiveAttention])
def test_attention_is_causal_from_the_start_or_in_a_call(kind):
    q = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    always = kind(causal=True)
    again = kind.from_config(always.get_config())
    weights = always([q, q], return_attention_scores=True)[1].numpy()
    assert np.abs(np.triu(weights, 1)).max() < 1e-6
    again.build([(2, 3, 4)] * 2)
    again.set_weights(always.get_weights())
    assert_close(again([q, q]), always([q, q], use_causal_mask=True))
    assert "causal" not in kind().get_config()


def test_a_transformer_block_trains():
    inputs = tf.keras.Input((6,), dtype="int32")
    x = layers.Embedding(10, 8)(inputs)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x))
    x = layers.LayerNormalization()(x + layers.Dense(8)(layers.Dense(16, activation="gelu")(x)))
    model = tf.keras.Model(inputs, layers.Dense(10)(x))
    model.compile(
        tf.keras.optimizers.Adam(0.01),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    tokens = np.random.default_rng(0).integers(0, 10, (64, 6))
    losses = model.fit(tokens, tokens, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < 0.3 * losses[0]


def test_attention_layers(rng):
    q, v = (
        rng.normal(size=(1, 2, 3)).astype("float32"),
        rng.normal(size=(1, 4, 3)).astype("float32"),
    )
    scores = q[0] @ v[0].T
    p = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert_close(layers.Attention()([q, v]), (p @ v[0])[None], 1e-4)
    assert layers.AdditiveAttention()([q, v]).shape == (1, 2, 3)


ERRORS = [
    (lambda: layers.Dense(-1), "units"),
    (lambda: layers.Conv2D(3, 0), "kernel_size"),
    (lambda: layers.Conv2D(3, 2, padding="full"), "padding"),
    (lambda: layers.Conv2D(3, 2, groups=2), "The number of filters"),
    (lambda: layers.Dropout(1.5), "rate"),
    (lambda: layers.Dense(1, kernel_initializer="glorot"), "glorot"),
    (lambda: layers.Activation("rello"), "relu"),
    (lambda: layers.Dense(1, colour="red"), "colour"),
    (lambda: layers.Conv2D(1, 9)(tf.keras.Input((4, 4, 1))), "downsampling"),
    (lambda: layers.Dense(1)(np.ones(3, np.float32)), "min_ndim=2"),
    (lambda: layers.Reshape((5,))(np.ones((1, 4), np.float32)), "unchanged"),
    (lambda: layers.BatchNormalization(renorm=True), "renorm"),
]


@pytest.mark.parametrize(("action", "message"), ERRORS)
def test_errors_name_the_argument(action, message):
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=message):
        action()


def test_activations_initializers_regularizers_constraints(rng):
    x = rng.normal(size=(2, 3)).astype("float32")
    assert_close(tf.keras.activations.get("hard_sigmoid")(x), np.clip(0.2 * x + 0.5, 0, 1))
    assert_close(
        tf.keras.activations.relu(x, alpha=0.1, max_value=1.0),
        np.minimum(np.where(x >= 0, x, 0.1 * x), 1),
    )
    i = tf.keras.initializers
    assert_close(i.GlorotUniform(seed=1)((50, 60)), i.GlorotUniform(seed=1)((50, 60)).numpy())
    assert abs(i.HeNormal(seed=0)((400, 300)).numpy().std() - np.sqrt(2 / 400)) < 2e-3
    q = i.Orthogonal(seed=0)((5, 3)).numpy()
    assert_close(q.T @ q, np.eye(3), 1e-4, 1e-5)
    assert_close(i.get({"class_name": "Constant", "config": {"value": 3.0}})((2,)), [3, 3])
    assert_close(tf.keras.regularizers.get("l2")(x), 0.01 * (x**2).sum(), 1e-4)
    assert_close(
        tf.keras.regularizers.L1L2(0.1, 0.2)(x), 0.1 * np.abs(x).sum() + 0.2 * (x**2).sum(), 1e-4
    )
    assert_close(
        np.linalg.norm(tf.keras.constraints.MaxNorm(0.5)(x).numpy(), axis=0).max(), 0.5, 1e-4
    )
    model = tf.keras.Sequential([layers.Dense(2, kernel_constraint="non_neg", input_shape=(3,))])
    model.compile(tf.keras.optimizers.SGD(5.0), "mse")
    model.fit(x, np.zeros((2, 2)), epochs=3, verbose=0)
    assert model.get_weights()[0].min() >= 0


def test_policies():
    policy = tf.keras.mixed_precision.Policy("mixed_float16")
    assert (policy.compute_dtype, policy.variable_dtype) == ("float16", "float32")
    with pytest.raises(ValueError, match="mixed_bfloat16"):
        tf.keras.mixed_precision.Policy("mixed_float17")
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    model = tf.keras.Sequential(
        [
            layers.Dense(8, input_shape=(4,)),
            layers.Dense(2),
            layers.Activation("softmax", dtype="float32"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(np.ones((8, 4)), np.ones(8), verbose=0)
    assert (
        model.layers[0].compute_dtype == "bfloat16" and model(np.ones((1, 4))).dtype == tf.float32
    )
    assert all(w.dtype == tf.float32 for w in model.weights)


def test_deleted_weight_is_untracked():
    layer = tf.keras.layers.Layer(dtype="mixed_bfloat16")
    layer.x = layer.add_weight("x", (2,), initializer="ones", regularizer="l2")
    layer.y = layer.again = layer.add_weight("y", (2,))
    assert len(layer.weights) == 2 and len(layer.losses) == 1
    del layer.x, layer.y
    assert [w.name for w in layer.weights] == ["y:0"] and not layer.losses
    with pytest.raises(AttributeError):
        del layer.x


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Conv1D", (2, 3, 1, "valid", None, 1, 1, "relu", False, "ones")),
        ("Conv2DTranspose", (2, 3, 1, "valid", None, None, 1, "relu", False, "ones")),
        (
            "SeparableConv2D",
            (2, 3, 1, "valid", None, 1, 1, "relu", False, "zeros", "zeros", "ones"),
        ),
        ("LayerNormalization", (-1, 0.1, True, True, "zeros", "ones")),
    ],
)
def test_further_positional_arguments(name, arguments):
    layer = getattr(tf.keras.layers, name)(*arguments)
    options = {k: v for k, v in vars(layer).items() if k.endswith("_initializer")}
    (changed,) = [k for k, v in options.items() if type(v).__name__ == "Ones"]
    with pytest.raises(TypeError, match="multiple values for"):
        getattr(tf.keras.layers, name)(*arguments, **{changed: "ones"})
    with pytest.raises(TypeError, match="positional arguments"):
        getattr(tf.keras.layers, name)(*arguments, *[None] * 20)


@pytest.mark.parametrize(
    "layer, expected",
    [
        (tf.keras.layers.ReLU(negative_slope=0.5), [-1.5, 0.0, 2.0]),
        (tf.keras.layers.ReLU(threshold=2.5), [0.0, 0.0, 0.0]),
        (tf.keras.layers.ThresholdedReLU(1.5), [0.0, 0.0, 2.0]),
        (tf.keras.layers.ELU(2.0), [2 * np.expm1(-3.0), 0.0, 2.0]),
    ],
)
def test_activations_of_lists_of_numbers(layer, expected):
    np.testing.assert_allclose(layer([-3.0, 0.0, 2.0]), expected, rtol=1e-6)
