"""Test that models converted for LiteRT equal the original, for any batch size, in each precision."""

import numpy as np
import pytest

import meshflow as tf

pytest.importorskip("ai_edge_litert", reason="needs the extra lite")

L = tf.keras.layers
DEFAULT = [tf.lite.Optimize.DEFAULT]


def _sequential(shape, *layers):
    model = tf.keras.Sequential([tf.keras.Input(shape), *layers])
    rng = np.random.default_rng(0)
    for w in model.weights:
        low = 0.5 if "variance" in w.name or "gamma" in w.name else -0.5
        w.assign(rng.uniform(low, 1.0, w.shape))
    return model


def _transformer():
    x = tf.keras.Input((7, 16))
    y = L.LayerNormalization()(L.MultiHeadAttention(2, 8)(x, x) + x)
    y = L.Dense(16, activation="gelu")(y)
    return tf.keras.Model(x, L.GlobalAveragePooling1D()(y))


MODELS = {
    "images": lambda: _sequential(
        (16, 16, 3),
        L.Conv2D(8, 3, padding="same", activation="relu"),
        L.BatchNormalization(),
        L.Conv2D(8, 3, use_bias=False),
        L.BatchNormalization(),
        L.ReLU(6.0),
        L.MaxPooling2D(3, 2, padding="same"),
        L.AveragePooling2D(2, padding="same"),
        L.SeparableConv2D(8, 3, padding="same"),
        L.Conv2DTranspose(4, 3, strides=2, padding="same"),
        L.UpSampling2D(2),
        L.ZeroPadding2D(1),
        L.MaxPooling2D(2),
        L.Flatten(),
        L.Dense(10, activation="softmax"),
    ),
    "transformer": _transformer,
    "sequences": lambda: _sequential(
        (6, 5),
        L.Conv1D(4, 3, padding="causal", dilation_rate=2),
        L.GRU(4, return_sequences=True),
        L.Bidirectional(L.LSTM(3, return_sequences=True)),
        L.SimpleRNN(3),
    ),
    "masks": lambda: _sequential((9,), L.Embedding(40, 8, mask_zero=True), L.LSTM(4), L.Dense(2)),
    "functions": lambda: _sequential(
        (5,),
        *(L.Dense(4, activation=a) for a in ("swish", "elu", "hard_sigmoid", "softplus", "tanh")),
        L.LeakyReLU(),
        L.PReLU(),
    ),
}


def _of(run, x):
    (key,) = run.get_input_details()
    return next(iter(run(**{key: x}).values()))


@pytest.mark.parametrize("is_loaded", [False, True])
def test_masked_recurrent_layers_of_any_length(is_loaded, tmp_path):
    tokens = tf.keras.Input((None,), dtype="int32")
    x = L.Embedding(20, 4, mask_zero=True)(tokens)
    x = L.GRU(3, return_sequences=True)(x)
    model = tf.keras.Model(tokens, L.Bidirectional(L.LSTM(3))(x))
    if is_loaded:
        tf.saved_model.save(model, tmp_path)
        converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path))
    else:
        converter = tf.lite.TFLiteConverter.from_keras_model(model)
    run = tf.lite.Interpreter(model_content=converter.convert()).get_signature_runner()
    for length in (4, 6):
        texts = np.arange(1, 2 * length + 1, dtype=np.int32).reshape(2, length)
        texts[0, 2:] = 0
        np.testing.assert_allclose(_of(run, texts), model(texts).numpy(), atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_converted_model_equals_the_model_for_any_batch_size(name):
    model = MODELS[name]()
    content = tf.lite.TFLiteConverter.from_keras_model(model).convert()
    interpreter = tf.lite.Interpreter(model_content=content)
    assert interpreter.get_signature_list()["serving_default"]["outputs"] == model.output_names
    run = interpreter.get_signature_runner("serving_default")
    shape = (5, *model.input_shape[1:])
    rng = np.random.default_rng(1)
    x = (
        rng.integers(0, 40, shape) * (np.arange(9) < 6)
        if name == "masks"
        else rng.normal(size=shape)
    )
    x = x.astype(np.float32)
    expected = model(x).numpy()
    for batch in (1, 5, 2):
        np.testing.assert_allclose(_of(run, x[:batch]), expected[:batch], atol=3e-6)


def _codes(content, subgraph=0):
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))
    names = {v: k for k, v in vars(schema.BuiltinOperator).items()}
    return [
        names[model.operatorCodes[o.opcodeIndex].builtinCode]
        for o in model.subgraphs[subgraph].operators
    ]


def test_batch_normalization_biases_and_activations_are_folded():
    model = _sequential(
        (8, 8, 2), L.ZeroPadding2D(((0, 1), (0, 1))), L.Conv2D(4, 3, strides=2), L.BatchNormalization(), L.ReLU(), L.MaxPooling2D(), L.Flatten(), L.Dense(3, "softmax")
    )  # fmt: skip
    content = tf.lite.TFLiteConverter.from_keras_model(model).convert()
    expected = ["CONV_2D", "MAX_POOL_2D", "RESHAPE", "FULLY_CONNECTED", "SOFTMAX"]
    assert _codes(content) == expected


def _prelu(x):
    slopes = tf.constant(np.linspace(0.1, 0.5, 8), tf.float32)
    return tf.nn.relu(x) - slopes * tf.nn.relu(-x)


OPERATORS = {
    "ELU": tf.nn.elu,
    "LEAKY_RELU": tf.nn.leaky_relu,
    "HARD_SWISH": lambda x: _hard_swish(x),
    "PRELU": _prelu,
    "LOG_SOFTMAX": tf.nn.log_softmax,
    "BATCH_MATMUL": lambda x: tf.matmul(x[..., None], x[:, None] * tf.ones([8, 1]), transpose_a=True, transpose_b=True),
    "GATHER_ND": lambda x: tf.gather_nd(np.float32([[1, 2], [3, 4]]), tf.cast(x[:, :2] > 0, tf.int32)),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_ops_become_litert_operators(name):
    function, x = OPERATORS[name], np.random.default_rng(2).normal(size=(3, 8)).astype(np.float32)
    signature = tf.function(function).get_concrete_function(tf.TensorSpec([None, 8], name="x"))
    content = tf.lite.TFLiteConverter.from_concrete_functions([signature]).convert()
    codes = _codes(content)
    assert name in codes and not {"TRANSPOSE", "SELECT_V2", "LESS"} & set(codes)
    if name in ("ELU", "LEAKY_RELU", "HARD_SWISH", "PRELU", "LOG_SOFTMAX"):
        assert codes == [name]
    run = tf.lite.Interpreter(model_content=content).get_signature_runner()
    np.testing.assert_allclose(_of(run, x), function(tf.constant(x)), atol=2e-6)


def _hard_swish(x):
    return x * (tf.nn.relu6(x + 3) * (1 / 6))


_TABLE = np.arange(32.0, dtype=np.float32).reshape(8, 4)
_IMAGE, _LINE, _WHOLE = [None, 6, 6, 4], [None, 8], tf.int32
# Ops that become one operator, or these, with the shape and the dtype of the operand.
ALONE = {
    "GATHER": (lambda i: tf.nn.embedding_lookup(_TABLE, i), [None, 3], _WHOLE),
    "UNPACK GATHER GATHER": (lambda i: tf.gather(tf.gather(_TABLE, i[0]), i[1], axis=1), [2, 3], _WHOLE),
    "ONE_HOT": (lambda i: tf.one_hot(i, 5, 2.0, -1.0, axis=1), [None, 3], _WHOLE),
    "RESIZE_BILINEAR": (lambda x: tf.image.resize(x, [9, 4]), _IMAGE, tf.float32),
    "RESIZE_NEAREST_NEIGHBOR": (lambda x: tf.image.resize(x, [9, 13], "nearest"), _IMAGE, tf.float32),
    "RESIZE_NEAREST_NEIGHBOR ": (L.UpSampling2D((2, 3)), _IMAGE, tf.float32),
    "RESIZE_BILINEAR ": (L.UpSampling2D(2, interpolation="bilinear"), _IMAGE, tf.float32),
    "SPACE_TO_DEPTH": (lambda x: tf.nn.space_to_depth(x, 2), _IMAGE, tf.float32),
    "DEPTH_TO_SPACE": (lambda x: tf.nn.depth_to_space(x, 2), _IMAGE, tf.float32),
    "SPACE_TO_BATCH_ND": (lambda x: tf.space_to_batch(x, [2, 3], [[0, 0], [0, 0]]), [2, 6, 6, 4], tf.float32),
    "BATCH_TO_SPACE_ND": (lambda x: tf.batch_to_space(x, [2, 2], [[0, 0], [0, 0]]), [4, 6, 6, 4], tf.float32),
    "MIRROR_PAD": (lambda x: tf.pad(x, [[0, 0], [2, 3]], "REFLECT"), _LINE, tf.float32),
    "MIRROR_PAD MIRROR_PAD": (lambda x: tf.pad(x, [[0, 0], [2, 1], [1, 3], [0, 0]], "SYMMETRIC"), _IMAGE, tf.float32),
    "L2_NORMALIZATION": (lambda x: tf.nn.l2_normalize(x, -1), _LINE, tf.float32),
    "TOPK_V2": (lambda x: tf.math.top_k(x, 3), _LINE, tf.float32),
    "TOPK_V2 ": (lambda x: tf.sort(x, direction="DESCENDING"), _LINE, tf.float32),
    "TOPK_V2  ": (lambda x: tf.argsort(x, direction="DESCENDING"), _LINE, tf.float32),
    "NEG TOPK_V2 NEG": (lambda x: tf.sort(x), _LINE, tf.float32),
    "SUB TOPK_V2 SUB": (lambda x: tf.sort(x), _LINE, _WHOLE),
    "NEG TOPK_V2": (lambda x: tf.argsort(x, axis=1), _LINE, tf.float32),
    "UNPACK": (lambda x: tuple(tf.unstack(x, axis=1)), _IMAGE, tf.float32),
    "CUMSUM": (lambda x: tf.cumsum(x, 1, exclusive=True, reverse=True), _LINE, tf.float32),
    "FLOOR_MOD": (lambda x: tf.math.floormod(x, -3), _LINE, _WHOLE),
    "FLOOR_MOD ": (lambda x: tf.math.floormod(x, 0.75), _LINE, tf.float32),
    "FLOOR_DIV": (lambda x: x // 3, _LINE, _WHOLE),
    "FLOOR_DIV ": (lambda x: x // -0.5, _LINE, tf.float32),
    "RELU_N1_TO_1": (lambda x: tf.clip_by_value(x, -1.0, 1.0), _LINE, tf.float32),
    "SQUARED_DIFFERENCE": (lambda x: tf.math.squared_difference(x, 2.0), _LINE, tf.float32),
    "MEAN": (tf.reduce_mean, _LINE, tf.float32),
    "REDUCE_MIN": (lambda x: tf.reduce_min(x, 1), _LINE, tf.float32),
    "TILE": (lambda x: tf.tile(x, [1, 3]), _LINE, tf.float32),
    "SHAPE FILL": (lambda x: tf.fill(tf.shape(x), 2.0), _LINE, tf.float32),
    "ABS POW": (lambda x: tf.abs(x) ** 2.5, _LINE, tf.float32),
    "BITWISE_XOR": (lambda x: tf.bitwise.bitwise_xor(x, 5), _LINE, _WHOLE),
    "RIGHT_SHIFT": (lambda x: tf.bitwise.right_shift(x, 1), _LINE, _WHOLE),
    "SCATTER_ND": (lambda i: tf.scatter_nd(i, _TABLE[:3], [8, 4]), [3, 1], _WHOLE),
    "SCATTER_ND ADD": (lambda i: tf.tensor_scatter_nd_add(_TABLE, i, _TABLE[:3]), [3, 1], _WHOLE),
    "HARD_SWISH MEAN HARD_SWISH RESHAPE": (
        lambda x: tf.squeeze(_hard_swish(tf.reduce_mean(_hard_swish(x), [1, 2], keepdims=True)), [1, 2]), _IMAGE, tf.float32,
    ),
    "SHAPE FILL ATAN2": (tf.atan, _LINE, tf.float32),
}  # fmt: skip


def test_op_groups_become_one_litert_operator():
    rng = np.random.default_rng(3)
    functions = [
        tf.function(f, input_signature=[tf.TensorSpec(shape, dtype, name="x")])
        for f, shape, dtype in ALONE.values()
    ]
    concrete = [f.get_concrete_function() for f in functions]
    content = tf.lite.TFLiteConverter.from_concrete_functions(concrete).convert()
    interpreter = tf.lite.Interpreter(model_content=content)
    signatures = list(interpreter.get_signature_list())
    assert len(signatures) == len(ALONE)
    for number, (codes, (function, shape, dtype)) in enumerate(ALONE.items()):
        assert " ".join(_codes(content, number)) == codes.strip(), codes
        given = [2 if n is None else n for n in shape]
        x = rng.normal(size=given) if dtype is tf.float32 else rng.integers(0, 4, given)
        x = x.astype(dtype.as_numpy_dtype)
        found = interpreter.get_signature_runner(signatures[number])(x=x)
        for key, value in zip(
            sorted(found), tf.nest.flatten(function(tf.constant(x))), strict=True
        ):
            np.testing.assert_allclose(found[key], value, atol=2e-6, err_msg=codes)


def test_rows_written_over_others_and_other_functions():
    x = np.linspace(-0.9, 0.9, 6, dtype=np.float32).reshape(3, 2)
    places = np.int32([[1, 3], [0, 2], [1, 3], [0, 2]])

    def several(x):
        rows = tf.reshape(tf.concat([x, x + 2.0], 0), [6, 2])
        written = tf.tensor_scatter_nd_update(tf.zeros([2, 4, 2]), places, rows[:4])
        taken = tf.tensor_scatter_nd_sub(tf.zeros([2, 4, 2]), places, rows[:4])
        angles = [f(x) for f in (tf.asin, tf.acos, tf.asinh, tf.atanh)]
        return written, taken, *angles, tf.acosh(x + 2.0), tf.sort(x, axis=0)

    function = tf.function(several, input_signature=[tf.TensorSpec([3, 2], name="x")])
    concrete = [function.get_concrete_function()]
    content = tf.lite.TFLiteConverter.from_concrete_functions(concrete).convert()
    found = tf.lite.Interpreter(model_content=content).get_signature_runner()(x=x)
    for key, value in zip(sorted(found), several(tf.constant(x)), strict=True):
        np.testing.assert_allclose(found[key], value, atol=1e-5)


def test_random_ops_become_litert_random_operators():
    tf.random.set_seed(0)
    drop = L.Dropout(0.5)

    @tf.function(input_signature=[tf.TensorSpec([None, 4000], name="x")])
    def noisy(x):
        return drop(x, training=True), tf.random.normal([4000], 3.0, 2.0), tf.random.uniform([4000], 1.0, 5.0)  # fmt: skip

    converter = tf.lite.TFLiteConverter.from_concrete_functions([noisy.get_concrete_function()])
    run = tf.lite.Interpreter(model_content=converter.convert()).get_signature_runner()
    dropped, normal, uniform = (v for _, v in sorted(run(x=np.ones((2, 4000), np.float32)).items()))
    assert set(np.unique(dropped)) == {0, 2} and abs(dropped.mean() - 1) < 0.1
    assert abs(normal.mean() - 3) < 0.2 and abs(normal.std() - 2) < 0.2
    assert 1 <= uniform.min() < 1.1 and 4.9 < uniform.max() <= 5 and abs(uniform.mean() - 3) < 0.15
    again = run(x=np.ones((2, 4000), np.float32))
    assert not np.array_equal(sorted(again.items())[1][1], normal)


@pytest.mark.parametrize(("scale", "kept"), [(1.0, False), (40.0, True)])
def test_results_beyond_int8_operators_remain_float(scale, kept):
    x = np.random.default_rng(2).normal(size=(3, 8)).astype(np.float32) * scale
    function = tf.function(lambda x: tf.nn.log_softmax(x + x[:, ::-1]))
    signature = function.get_concrete_function(tf.TensorSpec([None, 8], name="x"))
    converter = tf.lite.TFLiteConverter.from_concrete_functions([signature])
    converter.optimizations = DEFAULT
    converter.representative_dataset = lambda: ([row[None]] for row in x)
    content = converter.convert()
    assert (_codes(content)[-1] == "LOG_SOFTMAX") is kept
    run = tf.lite.Interpreter(model_content=content).get_signature_runner()
    expected = function(tf.constant(x)).numpy()
    assert np.abs(_of(run, x) - expected).max() < 0.02 * np.abs(expected).max()


def test_functions_of_jax_are_signatures():
    import jax
    import jax.numpy as jnp

    weights = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)

    def scores(x, scale):
        return {"y": jax.nn.softmax(x @ weights), "z": jax.nn.gelu(x) * scale}

    def total(x):
        return jnp.sum(x, 1)

    pairs = [[("x", jnp.zeros([2, 4])), ("scale", np.float32(0))], [("x", jnp.zeros([2, 4], "float32"))]]  # fmt: skip
    content = tf.lite.TFLiteConverter.experimental_from_jax([scores, total], pairs).convert()
    interpreter = tf.lite.Interpreter(model_content=content)
    x = np.random.default_rng(1).normal(size=(2, 4)).astype(np.float32)
    found = interpreter.get_signature_runner("serving_default")(x=x, scale=np.float32(2))
    for name, value in scores(x, 2.0).items():
        np.testing.assert_allclose(found[name], value, atol=1e-6)
    sums = interpreter.get_signature_runner("total")(x=x)["output_0"]
    np.testing.assert_allclose(sums, x.sum(1), atol=1e-6)
    for given, message in (
        (([], pairs), "No serving func"),
        (([scores], []), "Input tensors are not"),
        (([scores], pairs), "Input tensor number 2 does not match"),
    ):
        with pytest.raises(ValueError, match=message):
            tf.lite.TFLiteConverter.experimental_from_jax(*given)


def test_functions_are_checked_during_conversion(capsys):
    authoring = tf.lite.experimental.authoring

    class Module(tf.Module):
        @authoring.compatible
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        def factorials(self, x):
            return tf.math.lgamma(x)

    module = Module()
    np.testing.assert_allclose(module.factorials([3.0, 1.0]), [np.log(2), 0.0], atol=1e-6)
    told = capsys.readouterr().out
    assert told.startswith("COMPATIBILITY ERROR:") and "'lgamma'" in told
    assert len(module.factorials.get_compatibility_log()) == 1
    double = authoring.compatible(tf.function(lambda x: 2 * x), raise_exception=True)
    with pytest.raises(RuntimeError, match="isn't verified"):
        double.get_compatibility_log()
    assert double(tf.constant([1.0])).numpy() == 2 and double.get_compatibility_log() == []
    lgamma = authoring.compatible(raise_exception=True)(tf.function(tf.math.lgamma))
    with pytest.raises(authoring.CompatibilityError, match="'lgamma'"):
        lgamma(tf.constant([2.0, 1.0]))
    assert len(lgamma.get_compatibility_log()) == 1
    with pytest.raises(TypeError, match="takes a tf"):
        authoring.compatible(abs)
    with pytest.raises(TypeError, match=r"got \['raises'\]"):
        authoring.compatible(converter_allow_custom_ops=True, raises=True)


@pytest.fixture(scope="module")
def digits():
    (x, y), (x2, y2) = tf.keras.datasets.digits.load_data()
    x = np.concatenate([x, x2]).astype(np.float32)[..., None] / 255
    y = np.concatenate([y, y2])
    tf.keras.utils.set_random_seed(0)
    model = tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            L.Conv2D(16, 3, padding="same"),
            L.BatchNormalization(),
            L.ReLU(),
            L.Conv2D(32, 3, padding="same", activation="relu"),
            L.MaxPooling2D(),
            L.Flatten(),
            L.Dense(64, activation="relu"),
            L.Dense(10, activation="softmax"),
        ]
    )
    adam = tf.keras.optimizers.Adam(3e-3)
    model.compile(adam, "sparse_categorical_crossentropy")
    model.fit(x[:1400], y[:1400], batch_size=100, epochs=30, verbose=0)
    return model, x, y


def _converter(digits):
    return tf.lite.TFLiteConverter.from_keras_model(digits[0])


def _samples(digits):
    return lambda: ([image[None]] for image in digits[1][:500])


def _weights_only(c, digits):
    c.optimizations = DEFAULT


def _half(c, digits):
    c.optimizations, c.target_spec.supported_types = DEFAULT, [tf.float16]


def _static(c, digits):
    c.optimizations, c.representative_dataset = DEFAULT, _samples(digits)


def _integers_only(c, digits):
    _static(c, digits)
    c.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    c.inference_input_type, c.inference_output_type = tf.int8, tf.uint8


def _words(c, digits):
    _static(c, digits)
    kind = tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
    c.target_spec.supported_ops = [kind]
    c.inference_input_type = tf.int16


@pytest.mark.parametrize(
    ("settings", "smaller"),
    [
        (lambda c, d: None, 1),
        (_weights_only, 3),
        (_half, 1.9),
        (_static, 3),
        (_integers_only, 3),
        (_words, 3),
    ],
    ids=["float", "dynamic", "float16", "static", "integers", "words"],
)
def test_accuracy_of_a_converted_cnn_is_within_a_thousandth(digits, settings, smaller):
    model, x, y = digits
    converter = _converter(digits)
    settings(converter, digits)
    content = converter.convert()
    assert len(content) < 160_000 / smaller
    interpreter = tf.lite.Interpreter(model_content=content)
    (given,), (result,) = interpreter.get_input_details(), interpreter.get_output_details()
    if given["dtype"] is not np.float32:
        scale, zero = given["quantization"]
        limits = np.iinfo(given["dtype"])
        x = np.clip(np.round(x / scale) + zero, limits.min, limits.max).astype(given["dtype"])
    assert result["dtype"] is (np.uint8 if settings is _integers_only else np.float32)
    found = _of(interpreter.get_signature_runner(), x).argmax(-1)
    before = model.predict(digits[1], verbose=0).argmax(-1)
    assert abs((found == y).mean() - (before == y).mean()) <= 0.001
    assert ("DEQUANTIZE" in _codes(content)) == (settings in (_half, _static, _words))


@pytest.mark.parametrize("kind", [tf.int8, tf.uint8], ids=str)
def test_integer_inputs_and_outputs_of_a_float_model(kind):
    model = MODELS["sequences"]()
    x = np.random.default_rng(0).normal(size=(20, 6, 5)).astype(np.float32)
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = DEFAULT
    converter.representative_dataset = lambda: ([row[None]] for row in x)
    converter.inference_input_type = converter.inference_output_type = kind
    run = tf.lite.Interpreter(model_content=converter.convert()).get_signature_runner()
    (given,), (result,) = run.get_input_details().values(), run.get_output_details().values()
    (scale, zero), (out_scale, out_zero) = given["quantization"], result["quantization"]
    limits = np.iinfo(kind.as_numpy_dtype)
    integers = np.clip(np.round(x / scale) + zero, limits.min, limits.max).astype(given["dtype"])
    found = (_of(run, integers).astype(np.float32) - out_zero) * out_scale
    assert given["dtype"] is result["dtype"] is kind.as_numpy_dtype
    np.testing.assert_allclose(found, model(x).numpy(), atol=0.15)


def _quantize(model, x, wide=False):
    kinds = tf.lite.OpsSet
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = DEFAULT
    converter.representative_dataset = lambda: ([row[None]] for row in x)
    ops = kinds.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
    converter.target_spec.supported_ops = [ops if wide else kinds.TFLITE_BUILTINS_INT8]
    return converter.convert()


@pytest.mark.parametrize("wide", [False, True], ids=["bytes", "words"])
def test_image_decoder_has_no_float_operators(wide):
    model = _sequential(
        (4, 4, 3),
        L.Conv2D(4, 3, padding="same", activation="relu"),
        L.Conv2DTranspose(4, 3, strides=2, padding="same", activation="relu"),
        L.Conv2DTranspose(2, 3),
        L.Activation("sigmoid"),
    )
    x = np.random.default_rng(0).normal(size=(20, 4, 4, 3)).astype(np.float32) / 8
    content = _quantize(
        model, x, wide
    )  # a warning, which is an error here, would name remaining operators
    assert _codes(content).count("QUANTIZE") == _codes(content).count("DEQUANTIZE") == 1
    run = tf.lite.Interpreter(model_content=content).get_signature_runner()
    np.testing.assert_allclose(_of(run, x[:5]), model(x[:5]).numpy(), atol=0.02 if wide else 0.08)


def test_comparisons_of_integers():
    def chosen(x):
        y = tf.nn.relu(x)
        return tf.where(y > 1.0, y, tf.reverse(y, [-1])), tf.argmax(y, -1)

    x = tf.keras.Input((6,))
    model = tf.keras.Model(x, chosen(x))
    values = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = DEFAULT
    converter.representative_dataset = lambda: ([row[None]] for row in values)
    run = tf.lite.Interpreter(model_content=converter.convert()).get_signature_runner()
    (key,) = run.get_input_details()
    numbers, places = model(values)
    found = {v.dtype.kind: v for v in run(**{key: values}).values()}
    # Two values that are equal in 8 bits may differ by rounding.
    assert (found["i"] == places.numpy()).mean() > 0.9
    assert (np.abs(found["f"] - numbers.numpy()) < 0.05).mean() > 0.9


def test_remaining_float_operators_are_reported():
    model = _sequential((4,), L.Dense(3), L.Lambda(tf.exp))
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    with pytest.warns(UserWarning, match="EXP have no operators on 8-bit integers"):
        content = _quantize(model, x)
    run = tf.lite.Interpreter(model_content=content).get_signature_runner()
    expected = model(x).numpy()
    np.testing.assert_allclose(_of(run, x), expected, atol=0.05 * expected.max())


def test_integer_recurrent_layer_of_fixed_batch_size():
    # Unused results of a loop have no memory in LiteRT.
    x = tf.keras.Input((4, 2), batch_size=1)
    model = tf.keras.Model(x, L.Dense(2)(L.SimpleRNN(3)(x)))
    values = np.random.default_rng(0).normal(size=(20, 4, 2)).astype(np.float32)
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = DEFAULT
    converter.representative_dataset = lambda: ([row[None]] for row in values)
    kind = tf.lite.experimental.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = tf.lite.Interpreter(None, converter.convert(), None, 1, kind, True)
    found = _of(interpreter.get_signature_runner(), values[:1])
    np.testing.assert_allclose(found, model(values[:1]).numpy(), atol=0.05)


def test_concrete_functions_are_signatures():
    scale = tf.Variable([2.0, 3.0])

    @tf.function(input_signature=[tf.TensorSpec([None, 2], name="x")])
    def scaled(x):
        return {"y": x * scale, "sum": tf.reduce_sum(x, 1)}

    @tf.function
    def powers(x):
        return tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * x), (0, x))[1]

    fixed = powers.get_concrete_function(tf.TensorSpec([2]))
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [scaled.get_concrete_function(), fixed]
    )
    interpreter = tf.lite.Interpreter(model_content=converter.convert())
    signatures = interpreter.get_signature_list()
    assert list(signatures) == ["scaled", "powers"]
    assert sorted(signatures["scaled"]["outputs"]) == ["sum", "y"]
    found = interpreter.get_signature_runner("scaled")(x=np.float32([[1, 2], [3, 4]]))
    np.testing.assert_array_equal(found["y"], [[2, 6], [6, 12]])
    np.testing.assert_array_equal(found["sum"], [3, 7])
    powered = _of(interpreter.get_signature_runner("powers"), np.float32([2, 3]))
    np.testing.assert_array_equal(powered, [16, 81])
    with pytest.raises(ValueError, match="call get_concrete_function"):
        tf.lite.TFLiteConverter.from_concrete_functions([scaled])


def test_branches_become_subgraphs():
    @tf.function(input_signature=[tf.TensorSpec([3]), tf.TensorSpec([], tf.int32)])
    def choose(x, i):
        return tf.switch_case(i, [lambda: x, lambda: x * 10.0, lambda: x - 1.0])

    converter = tf.lite.TFLiteConverter.from_concrete_functions([choose.get_concrete_function()])
    run = tf.lite.Interpreter(model_content=converter.convert()).get_signature_runner()
    x = np.float32([1, 2, 3])
    for i, expected in enumerate((x, x * 10, x - 1)):
        found = next(iter(run(x=x, i=np.int32(i)).values()))
        np.testing.assert_array_equal(found, expected)


def test_a_saved_keras_model_is_converted(tmp_path):
    model = _sequential((4,), L.Dense(3))
    model.save(tmp_path / "model", save_format="tf")
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "model"))
    run = tf.lite.Interpreter(model_content=converter.convert()).get_signature_runner()
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(_of(run, x), model(x).numpy(), atol=1e-6)


@pytest.mark.parametrize("cut", [
    lambda x: x[:, ::2, 1:-1], lambda x: x[:, 1:6:3], lambda x: x[:, ::-1, 1:3], lambda x: x[:, 2, ::2],
    lambda x: x[:, -3:, 4:], lambda x: tf.gather(x, [1, 3, 5], axis=1), lambda x: tf.gather(x, [2, 2, 4], axis=1),
])  # fmt: skip
def test_slices_with_steps(cut):
    function = tf.function(cut, input_signature=[tf.TensorSpec([None, 7, 5], name="x")])
    x = np.random.default_rng(0).normal(size=(3, 7, 5)).astype(np.float32)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()])
    run = tf.lite.Interpreter(model_content=converter.convert()).get_signature_runner()
    np.testing.assert_array_equal(_of(run, x), function(x).numpy())


def test_functions_that_were_saved_compiled_are_converted(tmp_path):
    """Test files of `tf.Module`s, subclassed models and `export`, which contain programs instead of
    layers."""
    cell = L.GRU(2)
    module = tf.Module()
    module.cell = cell
    x = np.random.default_rng(0).normal(size=(3, 5, 4)).astype(np.float32)
    cell(x)
    module.double = tf.function(lambda x: x * 2.0, input_signature=[tf.TensorSpec([None, 3], name="x")])  # fmt: skip
    module.last = tf.function(
        lambda x: tf.nn.softmax(cell(x)), input_signature=[tf.TensorSpec([None, 5, 4], name="x")]
    )
    folder = str(tmp_path / "m")
    tf.saved_model.save(module, folder, {"double": module.double, "last": module.last})
    with pytest.raises(ValueError, match=r"no signature 'half', only \['double', 'last'\]"):
        tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=["half"])
    converter = tf.lite.TFLiteConverter.from_saved_model(folder, ["double", "last"])
    interpreter = tf.lite.Interpreter(model_content=converter.convert())
    double, last = map(interpreter.get_signature_runner, ("double", "last"))
    found = next(iter(double(x=np.ones((4, 3), np.float32)).values()))
    np.testing.assert_array_equal(found, np.full((4, 3), 2.0))
    np.testing.assert_allclose(_of(last, x), module.last(x).numpy(), atol=1e-6)


def test_conversion_error_names_the_primitive_and_the_layer():
    model = _sequential((4,), L.Lambda(lambda x: tf.math.lgamma(x), name="gamma"))
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    with pytest.raises(tf.errors.UnimplementedError, match=r"primitive 'lgamma' of layer '.*gamma.*no operator"):  # fmt: skip
        converter.convert()


def test_settings_that_contradict_each_other_are_refused(digits):
    converter = _converter(digits)
    converter.inference_input_type = tf.int8
    with pytest.raises(ValueError, match=r"inference_output_type must be tf.float32\."):
        converter.convert()
    converter = _converter(digits)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    with pytest.raises(ValueError, match="representative_dataset is required"):
        converter.convert()
    converter = _converter(digits)
    converter.optimizations = DEFAULT
    converter.representative_dataset = lambda: iter(())
    with pytest.raises(ValueError, match="gave no samples"):
        converter.convert()
    converter.representative_dataset = lambda: iter([[np.full((2, 8, 8, 1), np.inf)]])
    with pytest.raises(ValueError, match="infinite, so that it has no range"):
        converter.convert()
    converter.representative_dataset = lambda: iter([[digits[1][0]]])
    with pytest.raises(ValueError, match="have a batch dimension"):
        converter.convert()
    _words(converter, digits)
    converter.inference_input_type = tf.int8
    with pytest.raises(ValueError, match=r"must be in \['tf.float32', 'tf.int16'\]\."):
        converter.convert()


def test_analyzer_shows_operators(capfd, digits, tmp_path):
    analyze = tf.lite.experimental.Analyzer.analyze
    content = _converter(digits).convert()
    analyze(model_content=content)
    shown = capfd.readouterr().out
    assert shown.startswith("=== TFLite ModelAnalyzer ===") and "FULLY_CONNECTED" in shown
    path = tmp_path / "m.tflite"
    path.write_bytes(content)
    analyze(path)
    assert capfd.readouterr().out.startswith(f"=== {path} ===")
    with pytest.raises(ValueError, match="neither `model_path` nor `model_content`"):
        analyze()
    with pytest.raises(tf.errors.UnimplementedError, match="MLIR"):
        analyze(path, experimental_use_mlir=True)


def test_interpreters_may_be_subclassed(digits):
    class Named(tf.lite.Interpreter):
        def __init__(self, name, **options):
            super().__init__(**options)
            self.name = name

    content = _converter(digits).convert()
    made = Named("digits", model_content=content)
    assert made.name == "digits" and made.get_input_details()[0]["shape"].tolist() == [1, 8, 8, 1]
    assert isinstance(made, tf.lite.Interpreter) and issubclass(Named, tf.lite.Interpreter)
    assert not isinstance(tf.lite.Interpreter(model_content=content), Named)


@pytest.mark.parametrize("wide", [False, True], ids=["bytes", "words"])
def test_data_movement_and_resizing_remain_integer(wide):
    def moved(x):
        y = tf.nn.relu(x) - 1.0
        y = tf.image.resize(tf.space_to_batch(y, [2, 2], [[0, 0], [0, 0]]), [6, 6])
        y = tf.pad(
            tf.image.resize(y, [9, 9], "nearest"), [[0, 0], [0, 0], [1, 2], [0, 0]], "REFLECT"
        )
        y = tf.unstack(tf.tile(y[:, ::-1], [1, 1, 1, 2]), axis=1)[2] + 1.0
        if wide:
            return y
        y = tf.nn.depth_to_space(tf.reshape(y, [4, 6, 2, 8]), 2)
        y = tf.math.squared_difference(tf.clip_by_value(y, -1.0, 1.0), 2.0)
        return tf.nn.l2_normalize(tf.nn.space_to_depth(y, 2), -1) + 1.0

    function = tf.function(moved, input_signature=[tf.TensorSpec([1, 4, 4, 4], name="x")])
    x = np.random.default_rng(0).normal(size=(20, 1, 4, 4, 4)).astype(np.float32)
    kinds = tf.lite.OpsSet
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()])
    converter.optimizations, converter.representative_dataset = DEFAULT, lambda: ([v] for v in x)
    ops = kinds.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
    converter.target_spec.supported_ops = [ops if wide else kinds.TFLITE_BUILTINS_INT8]
    content = (
        converter.convert()
    )  # a warning, which is an error here, would name remaining operators
    assert _codes(content).count("QUANTIZE") == _codes(content).count("DEQUANTIZE") == 1
    run = tf.lite.Interpreter(model_content=content).get_signature_runner()
    found = [_of(run, v) for v in x[:5]]
    expected = [moved(tf.constant(v)).numpy() for v in x[:5]]
    np.testing.assert_allclose(found, expected, atol=0.012 if wide else 0.06)


def test_a_bias_far_larger_than_the_weights_fits_its_integers():
    kernel, bias = np.float32([[1e-6, -1e-6], [1e-6, 2e-6]]), np.float32([2.0, 3.0])
    function = tf.function(
        lambda x: tf.matmul(x, kernel) + bias, input_signature=[tf.TensorSpec([1, 2], name="x")]
    )
    x = np.float32([[-1e-3, 1e-3]])
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()])
    converter.optimizations, converter.representative_dataset = DEFAULT, lambda: iter([{"x": x}])
    run = tf.lite.Interpreter(model_content=converter.convert()).get_signature_runner()
    np.testing.assert_allclose(_of(run, x), bias[None], atol=0.01)
