"""Helpers of Keras's own tests, which tests of libraries call: names of its module `test_utils`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.import_paths import get_public_package
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike
from meshflow.environment.types import ArrayLike, Config, PyTree

tf: Any = get_public_package()
_settings: dict[str, Any] = {
    **{"model_type": "functional", "run_eagerly": None},
    "save": ("tf", {}),
}


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
        data: Any = 10 * np.random.random(sizes)
        if not (input_dtype or "float32").startswith("float"):
            data = data.astype(input_dtype)
        else:
            data = (data - 0.5).astype(input_dtype or "float32")
    else:
        is_dataset = isinstance(input_data, tf.data.Dataset)
        data = input_data if is_dataset else np.asarray(input_data)
    shape = tuple(data.shape if input_shape is None else input_shape)
    if isinstance(data, np.ndarray):
        input_dtype = "string" if data.dtype.kind in "OSU" else input_dtype or data.dtype.name
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


def saved_model_format_scope(value: str, **kwargs: Any) -> contextlib.AbstractContextManager[None]:
    """Return a context in which models are saved in the format `h5` or `tf`, with further arguments of `save`."""
    return _set("save", (value, kwargs))


def get_save_format() -> str:
    """Return the format in which tests save models."""
    return str(_settings["save"][0])


def get_save_kwargs() -> dict[str, Any]:
    """Return the further arguments of `save`."""
    return dict(_settings["save"][1])


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
    return SmallSubclassMLP(num_hidden, num_classes)


def get_small_subclass_mlp_with_custom_build(num_hidden: int, num_classes: int) -> Any:
    """Return a subclassed model with two dense layers."""
    return SmallSubclassMLP(num_hidden, num_classes)


def get_multi_io_model(
    branch_a: Sequence[Any],
    branch_b: Sequence[Any],
    shared_input_branch: Sequence[Any] | None = None,
    shared_output_branch: Sequence[Any] | None = None,
) -> Any:
    """Return a Functional or subclassed model with two branches.

    Args:
      branch_a: Layers of a branch, after its `Input`.
      branch_b: Layers of the other branch, after its `Input`.
      shared_input_branch: Layers before both branches, after the only `Input`.
      shared_output_branch: Layers of the outputs of both branches; the first one merges them.
    """
    a, b, before = (list(p or []) for p in (branch_a, branch_b, shared_input_branch))
    inputs: PyTree = before.pop(0) if before else [a.pop(0), b.pop(0)]
    model = _BranchModel(a, b, before, list(shared_output_branch or []))
    if get_model_type() == "functional":
        return tf.keras.Model(inputs, model.call(inputs))
    return model


def get_test_data(
    train_samples: int,
    test_samples: int,
    input_shape: tuple[int, ...],
    num_classes: int,
    random_seed: int | None = None,
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return random examples of classes, and their labels, for training and for tests.

    Args:
      train_samples: Number of examples for training.
      test_samples: Number of examples for tests.
      input_shape: Shape of an example.
      num_classes: Number of classes; the examples of each are normally distributed around a point.
      random_seed: Seed of NumPy's global generator; None to use its present state.
    """
    if random_seed is not None:
        np.random.seed(random_seed)
    count = train_samples + test_samples
    centers = 2 * num_classes * np.random.random((num_classes, *input_shape))
    labels = np.random.randint(0, num_classes, size=(count,))
    examples = (centers[labels] + np.random.normal(size=(count, *input_shape))).astype(np.float32)
    parts = slice(None, train_samples), slice(train_samples, None)
    train, test = ((examples[part], labels[part]) for part in parts)
    return train, test


def get_v2_optimizer(name: str, **kwargs: Any) -> Any:
    """Return an optimizer of `tf.keras.optimizers.legacy` by its name in small letters."""
    legacy = tf.keras.optimizers.legacy
    names = {n.lower(): n for n in dir(legacy)}
    if name not in names:
        raise ValueError(f"get_v2_optimizer: {name!r} is no optimizer. Use one of {sorted(names)}.")
    return getattr(legacy, names[name])(**kwargs)


def get_expected_metric_variable_names(
    var_names: Sequence[str], name_suffix: str = ""
) -> list[str]:
    """Return the names of the variables of metrics."""
    return [f"{name}:0" for name in var_names]


class Bias(tf.keras.layers.Layer):
    """Layer that adds one weight, which is 0 at first."""

    def build(self, input_shape: ShapeLike) -> None:
        """Create the weight."""
        self.bias = self.add_weight("bias", (1,), initializer="zeros")

    def call(self, inputs: Any) -> Any:
        """Add the weight."""
        return inputs + self.bias


class SmallSubclassMLP(tf.keras.Model):
    """Subclassed model with two dense layers.

    Args:
      num_hidden: Number of hidden features.
      num_classes: Number of outputs.
      use_bn: Whether to normalize the batch before the last layer.
      use_dp: Whether to drop half of the hidden features.
      **kwargs: Arguments of `tf.keras.Model`.
    """

    def __init__(
        self,
        num_hidden: int,
        num_classes: int,
        use_bn: bool = False,
        use_dp: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(name="test_model", **kwargs)
        self.num_hidden, self.num_classes = num_hidden, num_classes
        self.use_bn, self.use_dp = use_bn, use_dp
        self.layer_a = tf.keras.layers.Dense(num_hidden, activation="relu")
        activation = "sigmoid" if num_classes == 1 else "softmax"
        self.layer_b = tf.keras.layers.Dense(num_classes, activation=activation)
        if use_dp:
            self.dp = tf.keras.layers.Dropout(0.5)
        if use_bn:
            self.bn = tf.keras.layers.BatchNormalization(axis=-1)

    def call(self, inputs: PyTree, **kwargs: Any) -> PyTree:
        """Call the layers one after the other."""
        x = self.layer_a(inputs)
        x = self.dp(x) if self.use_dp else x
        x = self.bn(x) if self.use_bn else x
        return self.layer_b(x)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        names = ("num_hidden", "num_classes", "use_bn", "use_dp")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


class _BranchModel(tf.keras.Model):
    """Subclassed model with two branches between shared layers; without shared layers, it has two inputs and outputs."""

    def __init__(self, a: list[Any], b: list[Any], before: list[Any], after: list[Any]) -> None:
        super().__init__()
        self.before, self.branch_a, self.branch_b, self.after = before, a, b, after

    def call(self, inputs: PyTree, **kwargs: Any) -> PyTree:
        """Call the layers of both branches."""

        def apply(layers: Sequence[Any], x: PyTree) -> PyTree:
            for layer in layers:
                x = layer(x)
            return x

        if not isinstance(inputs, (list, tuple, Mapping)):
            a = b = apply(self.before, inputs)
        elif isinstance(inputs, Mapping):
            a, b = inputs["input_1"], inputs["input_2"]
        else:
            a, b = inputs
        outputs = [apply(self.branch_a, a), apply(self.branch_b, b)]
        return apply(self.after, outputs) if self.after else outputs


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

    def get_config(self) -> Config:
        """Raise an error: tests need a model without a configuration."""
        raise NotImplementedError("_LayerModel has no configuration.")
