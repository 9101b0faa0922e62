"""Functions of `tf.keras.__internal__`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config, PyTree
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.models.functional import Functional
from meshflow.keras.engine.models.model import Model
from meshflow.keras.engine.models.sequential import Sequential
from meshflow.keras.engine.training.data_adapter import DataHandler
from meshflow.keras.losses.base import reduce_weighted
from meshflow.legacy.compat.public_package import tf

__all__ = [
    "BaseRandomLayer",
    "apply_name_scope_on_model_declaration",
    "clone_and_build_model",
    "compute_weighted_loss",
    "convert_to_legacy_optimizer",
    "get_data_handler",
    "in_place_subclassed_model_state_restoration",
    "initialize_variables",
    "register_symbolic_tensor_type",
    "track_variable",
]


_RNG_TYPES = ("stateful", "stateless", "legacy_stateful")


class RandomGenerator:
    """Random numbers of a layer.

    Args:
      seed: Seed.
      rng_type: Name of Keras' kind of generator, which the configuration of the layer holds.
      force_generator: Ignored.
    """

    def __init__(
        self, seed: int | None = None, rng_type: str | None = None, force_generator: bool = False
    ) -> None:
        if rng_type not in (None, *_RNG_TYPES):
            raise ValueError(f"Expected an rng_type in {_RNG_TYPES}, got {rng_type!r}.")
        self._rng_type = rng_type or _RNG_TYPES[-1]
        self._seed = seed
        self._generator = tf.random.Generator.from_seed(seed) if seed else None

    def _draw(self, name: str, *args: Any, **kwargs: Any) -> Tensor:
        owner = tf.random if self._generator is None else self._generator
        return getattr(owner, name)(*args, **kwargs)

    def make_seed_for_stateless_op(self) -> Tensor:
        """Return two integers that seed a stateless op; they differ at each call, unless `rng_type` is 'stateless'."""
        if self._rng_type == "stateless":
            return tf.constant([self._seed or 0, 0], tf.int64)
        if self._generator is not None:
            return self._generator.make_seeds()[:, 0]
        return tf.random.uniform([2], maxval=2**31, dtype=tf.int64)

    def make_legacy_seed(self) -> int | None:
        """Return the seed and increase it by one; None without a seed."""
        if self._seed is None:
            return None
        self._seed += 1
        return self._seed - 1

    def random_normal(
        self,
        shape: ShapeLike,
        mean: float = 0.0,
        stddev: float = 1.0,
        dtype: DTypeLike | None = None,
        nonce: object = None,
    ) -> Tensor:
        """Draw from a normal distribution."""
        return self._draw("normal", shape, mean, stddev, dtype=dtype or tf.keras.backend.floatx())

    def random_uniform(
        self,
        shape: ShapeLike,
        minval: float = 0.0,
        maxval: Any = None,
        dtype: DTypeLike | None = None,
        nonce: object = None,
    ) -> Tensor:
        """Draw from a uniform distribution."""
        maxval = 1.0 if maxval is None else maxval
        return self._draw(
            "uniform", shape, minval, maxval, dtype=dtype or tf.keras.backend.floatx()
        )

    def truncated_normal(
        self,
        shape: ShapeLike,
        mean: float = 0.0,
        stddev: float = 1.0,
        dtype: DTypeLike | None = None,
        nonce: object = None,
    ) -> Tensor:
        """Draw from a normal distribution without values beyond two standard deviations."""
        return self._draw(
            "truncated_normal", shape, mean, stddev, dtype=dtype or tf.keras.backend.floatx()
        )

    def dropout(self, inputs: TensorLike, rate: float, noise_shape: Any = None) -> Tensor:
        """Set elements to 0 and scale the others."""
        return tf.nn.dropout(inputs, rate=rate, noise_shape=noise_shape, seed=self._seed)


class BaseRandomLayer(Layer):
    """Layer with a source of random numbers, `_random_generator`.

    Args:
      seed: Seed.
      force_generator: Ignored.
      rng_type: Name that the configuration holds; it has no other effect.
      **kwargs: Arguments of `Layer`.
    """

    def __init__(
        self,
        seed: int | None = None,
        force_generator: bool = False,
        rng_type: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._random_generator = RandomGenerator(seed, rng_type)

    def get_config(self) -> Config:
        """Return the configuration."""
        rng_type = self._random_generator._rng_type
        return super().get_config() | ({} if rng_type == _RNG_TYPES[-1] else {"rng_type": rng_type})


def apply_name_scope_on_model_declaration(enable: bool) -> None:
    """Do nothing: names of weights do not depend on scopes around a model."""


def initialize_variables(session: object) -> None:
    """Do nothing: variables are initialized when they are created."""


def track_variable(v: object) -> None:
    """Do nothing: there are no sessions that initialize variables."""


def register_symbolic_tensor_type(cls: type) -> None:
    """Do nothing: symbolic tensors are `KerasTensor`s."""


def compute_weighted_loss(
    losses: TensorLike,
    sample_weight: TensorLike = None,
    reduction: str = "sum_over_batch_size",
    name: str | None = None,
) -> TensorLike:
    """Multiply losses by weights and reduce them."""
    return reduce_weighted(losses, sample_weight, reduction)


def get_data_handler(*args: Any, **kwargs: Any) -> DataHandler:
    """Return the batches of a call of `fit`.

    Args:
      *args: Arguments of the handler: inputs, targets, weights, batch size.
      **kwargs: As above; `model` and options of worker threads are ignored.
    """
    ignored = (
        "model",
        "max_queue_size",
        "workers",
        "use_multiprocessing",
        "steps_per_execution",
        "distribute",
    )
    return DataHandler(*args, **{k: v for k, v in kwargs.items() if k not in ignored})


def convert_to_legacy_optimizer(optimizer: Any) -> Any:
    """Return the optimizer of `tf.keras.optimizers.legacy` with the same configuration.

    Raises:
      ValueError: If the argument is not an optimizer.
    """
    if not isinstance(optimizer, tf.keras.optimizers.Optimizer):
        raise ValueError(
            f"`convert_to_legacy_optimizer` should only be called on optimizers, got {optimizer!r}."
        )
    legacy = getattr(tf.keras.optimizers.legacy, type(optimizer).__name__)
    if isinstance(optimizer, legacy):
        return optimizer
    dropped = (
        "weight_decay",
        "use_ema",
        "ema_momentum",
        "ema_overwrite_frequency",
        "jit_compile",
        "is_legacy_optimizer",
    )
    config = {k: v for k, v in optimizer.get_config().items() if k not in dropped and v is not None}
    return legacy.from_config(config)


def clone_and_build_model(
    model: Model,
    input_tensors: Any = None,
    target_tensors: Any = None,
    custom_objects: Mapping[str, Any] | None = None,
    compile_clone: bool = True,
    in_place_reset: bool = False,
    optimizer_iterations: Any = None,
    optimizer_config: Mapping[str, Any] | None = None,
) -> Model:
    """Return a copy of a model with new weights, compiled like it.

    Args:
      model: The model.
      input_tensors: Inputs of the copy, unless the model is of a custom class.
      target_tensors: Ignored.
      custom_objects: Classes by name.
      compile_clone: Whether to compile the copy.
      in_place_reset: Whether to replace the layers of a subclassed model without a configuration by
        new ones, instead of copying the model.
      optimizer_iterations: Variable that counts the steps of the copy's optimizer.
      optimizer_config: Configuration of the optimizer, instead of that of the model.

    Raises:
      ValueError: If the model is to be compiled but is not compiled, or if a subclassed model has no
        configuration and `in_place_reset` is False.
    """
    if compile_clone and not model.optimizer:
        raise ValueError(
            f"Error when cloning model: `compile_clone` was set to True, but the original model has not been compiled. Received: model={model}"
        )
    with tf.keras.utils.custom_object_scope(dict(custom_objects or {})):
        compile_config = model.get_compile_config() if compile_clone else {}
        is_graph = isinstance(model, (Functional, Sequential))
        try:
            clone = tf.keras.models.clone_model(model, input_tensors if is_graph else None)
        except NotImplementedError:
            if not in_place_reset:
                raise ValueError(
                    f"This model ({model}) is a subclassed model. Such a model cannot be cloned, but there is a workaround where the "
                    "model is reset in-place. To use this, please set the argument `in_place_reset` to `True`."
                ) from None
            clone = _reset_layers(model)
        if isinstance(model, Sequential) and model.built and not clone.built:
            clone.build(model._build_input_shape)
        if compile_clone:
            clone.compile_from_config(compile_config)
            if optimizer_config is not None:
                clone.optimizer = tf.keras.optimizers.deserialize(dict(optimizer_config))
            if optimizer_iterations is not None:
                clone.optimizer.iterations = optimizer_iterations
    return clone


# Attributes of models before `clone_and_build_model` replaced their layers.
_original_attributes: WeakKeyDictionary[Model, dict[str, Any]] = WeakKeyDictionary()


def _reset_layers(model: Model) -> Model:
    """Replace the layers in the attributes of a model by new ones; the model is not compiled."""
    attributes = {n: v for n, v in vars(model).items() if _contains_layer(v)}
    _original_attributes.setdefault(model, attributes)
    for name, value in attributes.items():
        setattr(model, name, tf.nest.map_structure(_renew_layer, value))
    model.optimizer = None  # type: ignore[assignment]
    model.built = model._is_compiled = False
    return model


def _contains_layer(value: PyTree) -> bool:
    return any(isinstance(part, Layer) for part in tf.nest.flatten(value))


def _renew_layer(value: PyTree) -> PyTree:
    return type(value).from_config(value.get_config()) if isinstance(value, Layer) else value


def in_place_subclassed_model_state_restoration(model: Model) -> None:
    """Restore the layers that `clone_and_build_model` replaced."""
    for name, value in _original_attributes.pop(model, {}).items():
        setattr(model, name, value)
