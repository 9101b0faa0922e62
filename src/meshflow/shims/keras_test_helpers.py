"""Helpers of Keras's own tests, which tests of libraries call: names of its module `test_utils`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.import_paths import get_public_package
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike
from meshflow.environment.types import ArrayLike, PyTree

tf: Any = get_public_package()
_settings: dict[str, Any] = {"model_type": "functional", "run_eagerly": None}


def layer_test(
    layer_cls: Callable[..., Any],
    kwargs: Mapping[str, Any] | None = None,
    input_shape: Sequence[int | None] | None = None,
    input_dtype: str | None = None,
    input_data: ArrayLike | None = None,
    expected_output: ArrayLike | None = None,
    expected_output_dtype: DTypeLike | None = None,
    expected_output_shape: Sequence[int | None] | None = None,
    validate_training: bool = True,
    adapt_data: ArrayLike | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    test_harness: Any = None,
    supports_masking: bool | None = None,
) -> np.ndarray:
    """Check the shapes, dtypes, weights and configuration of a layer and of models with it.

    Args:
      layer_cls: Class of the layer.
      kwargs: Arguments of the class.
      input_shape: Shape of random inputs with the batch size; an unknown size becomes 1 to 3.
      input_dtype: Dtype of the inputs; default float32.
      input_data: Inputs, instead of random ones.
      expected_output: Output to compare with.
      expected_output_dtype: Dtype of the output; default that of the inputs.
      expected_output_shape: Shape of the output.
      validate_training: Whether to train a model with the layer for one step.
      adapt_data: Data to adapt a preprocessing layer to.
      custom_objects: Classes by name, for configurations.
      test_harness: A `tf.test.TestCase` for the comparisons.
      supports_masking: Expected value of the layer's attribute.

    Returns:
      The output of the layer.
    """
    options = dict(kwargs or {})
    if input_data is None:
        if not input_shape:
            raise ValueError("layer_test needs `input_shape` or `input_data`.")
        sizes = [size or np.random.randint(1, 4) for size in input_shape]
        data = 10 * np.random.random(sizes)
        if not (input_dtype or "float32").startswith("float"):
            data = data.astype(input_dtype)
        else:
            data = (data - 0.5).astype(input_dtype or "float32")
    else:
        data = np.asarray(input_data)
    shape = tuple(data.shape if input_shape is None else input_shape)
    input_dtype = input_dtype or data.dtype.name
    input_dtype = "string" if data.dtype.kind in "OSU" else input_dtype
    output_dtype = tf.as_dtype(expected_output_dtype or input_dtype)
    compare = test_harness or tf.test.TestCase()

    layer = layer_cls(**options)
    if supports_masking is not None:
        assert layer.supports_masking == supports_masking
    if adapt_data is not None:
        layer.adapt(adapt_data)
    weights = layer.get_weights()
    layer.set_weights(weights)
    with tf.keras.utils.custom_object_scope(dict(custom_objects or {})):
        x = tf.keras.Input(shape[1:], dtype=input_dtype)
        y = layer(x)
        assert y.dtype == output_dtype, f"{y.dtype} is not the expected dtype {output_dtype}."
        if expected_output_shape is not None:
            _check_shape(expected_output_shape, y.shape)
        _check_shape(layer.compute_output_shape(tf.TensorShape(shape)), y.shape)
        signature = layer.compute_output_signature(tf.TensorSpec(shape, input_dtype))
        _check_shape(signature.shape, y.shape)
        assert signature.dtype == y.dtype
        model = tf.keras.Model(x, y)
        actual = model.predict(data, verbose=0)
        _check_shape(y.shape, actual.shape)
        if expected_output is not None:
            compare.assertAllClose(expected_output, actual, rtol=1e-3, atol=1e-6)
        recovered = tf.keras.Model.from_config(model.get_config(), custom_objects)
        if model.weights:
            recovered.set_weights(model.get_weights())
            if actual.dtype.kind in "fiub":
                compare.assertAllClose(
                    recovered.predict(data, verbose=0), actual, rtol=1e-3, atol=1e-6
                )
        if validate_training and output_dtype.is_floating:
            _train(tf.keras.Model(x, layer(x)), data, actual)
        # The same layer in a Sequential model, from its configuration.
        layer = type(layer).from_config(layer.get_config())
        if adapt_data is not None:
            layer.adapt(adapt_data)
        model = tf.keras.Sequential([tf.keras.Input(shape[1:], dtype=input_dtype), layer])
        actual = model.predict(data, verbose=0)
        _check_shape(model.layers[0].compute_output_shape(shape), actual.shape)
        if expected_output is not None:
            compare.assertAllClose(expected_output, actual, rtol=1e-3, atol=1e-6)
        tf.keras.Sequential.from_config(model.get_config(), custom_objects)
        if validate_training and output_dtype.is_floating:
            _train(model, data, actual)
    return actual


def _check_shape(expected: ShapeLike, actual: ShapeLike) -> None:
    message = f"The shape {actual} is not the expected shape {expected}."
    assert tf.TensorShape(expected).is_compatible_with(actual), message


def _train(model: Any, data: np.ndarray, targets: np.ndarray) -> None:
    model.compile("rmsprop", "mse", weighted_metrics=["acc"], run_eagerly=should_run_eagerly())
    model.train_on_batch(data, targets)


# ---- models of several kinds ----------------------------------------------------------------


@contextlib.contextmanager
def _set(name: str, value: object) -> Iterator[None]:
    before, _settings[name] = _settings[name], value
    try:
        yield
    finally:
        _settings[name] = before


def model_type_scope(value: str) -> contextlib.AbstractContextManager[None]:
    """Return a context in which `get_model_type()` is `functional`, `sequential` or `subclass`."""
    return _set("model_type", value)


def run_eagerly_scope(value: bool) -> contextlib.AbstractContextManager[None]:
    """Return a context in which `should_run_eagerly()` is `value`."""
    return _set("run_eagerly", value)


def get_model_type() -> str:
    """Return the kind of models to test."""
    return str(_settings["model_type"])


def should_run_eagerly() -> bool:
    """Return whether tests compile models with `run_eagerly`."""
    return bool(_settings["run_eagerly"])


def get_model_from_layers(
    model_layers: Sequence[Any],
    input_shape: Sequence[int | None] | None = None,
    input_dtype: DTypeLike | None = None,
    name: str | None = None,
    **_: object,
) -> Any:
    """Return a model of the present kind with layers in sequence."""
    if get_model_type() == "functional":
        inputs = tf.keras.Input(input_shape, dtype=input_dtype)
        outputs = inputs
        for layer in model_layers:
            outputs = layer(outputs)
        return tf.keras.Model(inputs, outputs, name=name)
    if get_model_type() == "sequential":
        start = [] if input_shape is None else [tf.keras.Input(input_shape, dtype=input_dtype)]
        return tf.keras.Sequential([*start, *model_layers], name=name)
    return _LayerModel(model_layers, name=name)


def get_small_mlp(num_hidden: int, num_classes: int, input_dim: int | None) -> Any:
    """Return a model of the present kind with two dense layers."""
    activation = "sigmoid" if num_classes == 1 else "softmax"
    layers = [
        tf.keras.layers.Dense(num_hidden, activation="relu"),
        tf.keras.layers.Dense(num_classes, activation=activation),
    ]
    return get_model_from_layers(layers, None if input_dim is None else (input_dim,))


def get_small_sequential_mlp(
    num_hidden: int, num_classes: int, input_dim: int | None = None
) -> Any:
    """Return a Sequential model with two dense layers."""
    with model_type_scope("sequential"):
        return get_small_mlp(num_hidden, num_classes, input_dim)


def get_small_functional_mlp(num_hidden: int, num_classes: int, input_dim: int) -> Any:
    """Return a Functional model with two dense layers."""
    with model_type_scope("functional"):
        return get_small_mlp(num_hidden, num_classes, input_dim)


def get_small_subclass_mlp(num_hidden: int, num_classes: int) -> Any:
    """Return a subclassed model with two dense layers."""
    with model_type_scope("subclass"):
        return get_small_mlp(num_hidden, num_classes, None)


class _LayerModel(tf.keras.Model):
    """Subclassed model with layers in sequence."""

    def __init__(self, model_layers: Sequence[Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.layer_list = list(model_layers)

    def call(self, inputs: PyTree) -> PyTree:
        """Call the layers one after the other."""
        for layer in self.layer_list:
            inputs = layer(inputs)
        return inputs
