"""Base classes of losses, with weighting and reduction of per-example losses."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from meshflow.core.functions.stateless import call_stateless, is_traced_by_jax
from meshflow.core.values.dtypes import DType, as_dtype, bool_, float32
from meshflow.core.values.symbolic_sizes import has_symbolic_size
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.distribute.replicas.context import get_spanning_context
from meshflow.distribute.replicas.shares import current_shares
from meshflow.environment.types import Config
from meshflow.keras import registry, settings
from meshflow.ops import array, math
from meshflow.ops.ragged import RaggedTensor, convert_values


class Reduction:
    """Reductions of per-example losses.

    `AUTO` and `SUM_OVER_BATCH_SIZE` compute the mean, `SUM` the sum; `NONE` keeps all losses.

    Example:
      >>> import meshflow as tf
      >>> losses = tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.NONE)
      >>> losses([[0.0], [0.0]], [[1.0], [3.0]]).numpy().tolist()
      [1.0, 9.0]
      >>> losses = tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.SUM)
      >>> losses([[0.0], [0.0]], [[1.0], [3.0]]).numpy().tolist()
      10.0
    """

    AUTO = "auto"
    NONE = "none"
    SUM = "sum"
    SUM_OVER_BATCH_SIZE = "sum_over_batch_size"

    @classmethod
    def all(cls) -> tuple[str, ...]:
        """Return all reductions."""
        return cls.AUTO, cls.NONE, cls.SUM, cls.SUM_OVER_BATCH_SIZE

    @classmethod
    def validate(cls, key: str) -> None:
        """Raise a ValueError for an unknown reduction."""
        if key not in (*cls.all(), "mean"):
            raise ValueError(f'Invalid Reduction Key: {key}. Expected keys are "{cls.all()}"')


class Loss:
    """Base class of losses; subclasses define `call(y_true, y_pred)`.

    Args:
      reduction: See `tf.keras.losses.Reduction`.
      name: Name of the loss.

    Example:
      >>> import meshflow as tf
      >>> class Cubic(tf.keras.losses.Loss):
      ...     def call(self, y_true, y_pred):
      ...         return tf.reduce_mean(tf.abs(y_true - y_pred) ** 3, axis=-1)
      >>> Cubic()([[0.0], [0.0]], [[1.0], [3.0]], sample_weight=[2.0, 0.0]).numpy().tolist()
      1.0
    """

    # Whether a compiled model divides the loss by the number of replicas.
    _is_scaled_by_model = False

    def __init__(self, reduction: str | None = Reduction.AUTO, name: str | None = None) -> None:
        reduction = Reduction.NONE if reduction is None else reduction
        Reduction.validate(reduction)
        self.reduction = reduction
        self.name = name

    def __call__(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike = None
    ) -> TensorLike:
        """Compute the reduced loss.

        Args:
          y_true: Labels.
          y_pred: Predictions.
          sample_weight: Weights of the examples or elements.

        Returns:
          A scalar, or a value per example without a reduction. The result is a JAX array inside a
          JAX transformation, such as `jax.grad`.
        """
        if is_traced_by_jax((y_true, y_pred, sample_weight)):
            return call_stateless(self._compute_reduced, [], [], (y_true, y_pred, sample_weight))[0]
        return self._compute_reduced(y_true, y_pred, sample_weight)

    def _compute_reduced(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike
    ) -> TensorLike:
        self._check_reduction()
        y_pred = convert_values(y_pred)
        mask = getattr(y_pred, "_keras_mask", None)
        losses = convert_values(self.call(convert_values(y_true), y_pred))
        is_counted = getattr(losses, "_keras_mask", None)
        if mask is not None and is_counted is not None:
            mask = math.logical_and(math.cast(mask, bool_), match_rank(is_counted, mask))
        elif mask is None:
            mask = is_counted
        if mask is not None:
            weights = self._compute_mask_weights(mask, losses.dtype)
            sample_weight = (
                weights
                if sample_weight is None
                else multiply_weights(convert_values(sample_weight), weights)
            )
        return reduce_weighted(losses, sample_weight, self.reduction)

    def _compute_mask_weights(self, mask: Tensor, dtype: DType) -> Tensor:
        """Convert a mask to weights, scaled so that a mean of all elements is that of the unmasked ones."""
        weights = math.cast(mask, dtype if dtype.is_floating else as_dtype(settings.floatx()))
        if self.reduction not in (Reduction.AUTO, Reduction.SUM_OVER_BATCH_SIZE):
            return weights
        fraction = math.reduce_mean(math.cast(mask, float32))
        replica_shares = current_shares()
        if replica_shares is not None:
            fraction = replica_shares.mean_over_all_shares(fraction)
        # A fully masked batch has the loss 0.
        return weights * math.cast(math.divide_no_nan(1.0, fraction), weights.dtype)

    def _check_reduction(self) -> None:
        # A mean over the examples of one replica, summed over the replicas, is too large by their
        # number.
        is_mean = self.reduction in (Reduction.AUTO, Reduction.SUM_OVER_BATCH_SIZE)
        if is_mean and get_spanning_context() is not None and not self._is_scaled_by_model:
            raise ValueError(
                "Please use `tf.keras.losses.Reduction.SUM` or `tf.keras.losses.Reduction.NONE` for loss "
                f"reduction of {type(self).__name__} in tf.distribute.Strategy.run, and divide by the global "
                "batch size: tf.nn.compute_average_loss(losses, global_batch_size=...). Model.compile() and "
                "fit() do so by themselves."
            )

    def call(self, y_true: TensorLike, y_pred: TensorLike) -> TensorLike:
        """Compute one loss per example."""
        raise NotImplementedError("Must be implemented in subclasses.")

    def get_config(self) -> Config:
        """Return the configuration."""
        return {"reduction": self.reduction, "name": self.name}

    @classmethod
    def from_config(cls, config: Config) -> Loss:
        """Create a loss from its configuration."""
        return cls(**config)


def multiply_weights(a: TensorLike, b: TensorLike) -> TensorLike:
    """Multiply weights by others of the same shape except for last axes that are missing in one of them."""
    a = math.cast(a, b.dtype)
    a, b = match_rank(a, b), match_rank(b, a)
    return a * b


def match_rank(weights: TensorLike, values: TensorLike) -> TensorLike:
    """Match the rank of weights to that of values: drop a last axis of size 1, or add axes."""
    w, v = len(weights.shape), len(values.shape)
    if w == v + 1 and weights.shape[-1] == 1:
        return array.squeeze(weights, -1)
    while 0 < len(weights.shape) < v:
        weights = array.expand_dims(weights, -1)
    return weights


def match_last_dimension(y_true: TensorLike, y_pred: TensorLike) -> tuple[TensorLike, TensorLike]:
    """Match the ranks of labels and predictions by dropping a last axis of size 1."""
    if len(y_true.shape) == len(y_pred.shape) + 1 and y_true.shape[-1] == 1:
        y_true = array.squeeze(y_true, -1)
    elif len(y_pred.shape) == len(y_true.shape) + 1 and y_pred.shape[-1] == 1:
        y_pred = array.squeeze(y_pred, -1)
    return y_true, y_pred


def reduce_weighted(losses: TensorLike, sample_weight: TensorLike, reduction: str) -> TensorLike:
    """Multiply losses by their weights and reduce them."""
    losses = convert_values(losses)
    if not losses.dtype.is_floating:
        losses = math.cast(losses, settings.floatx())
    if sample_weight is not None:
        weights = math.cast(convert_values(sample_weight), losses.dtype)
        if len(losses.shape) == 0 and len(weights.shape) == 1 and weights.shape[0] == 1:
            weights = array.squeeze(weights)
        losses = losses * match_rank(weights, losses)
    if reduction == Reduction.NONE:
        return losses
    if reduction == Reduction.SUM:
        return math.reduce_sum(losses)
    if isinstance(losses, RaggedTensor):
        losses = losses.flat_values
    if losses.shape.rank and has_symbolic_size(losses.shape):
        # The function is exported for any size, so the number of losses is unknown.
        return math.reduce_mean(losses)
    count = max(losses.shape.num_elements() or 0, 1)
    return math.reduce_sum(losses) / float(count)


class LossFunctionWrapper(Loss):
    """Loss that calls a function of (y_true, y_pred).

    Args:
      fn: The function.
      reduction: See `tf.keras.losses.Reduction`.
      name: Name of the loss.
      **kwargs: Other arguments of the function.

    Example:
      >>> import meshflow as tf
      >>> loss = tf.keras.losses.LossFunctionWrapper(tf.keras.losses.huber, delta=2.0)
      >>> float(loss([[0.0]], [[5.0]]))
      8.0
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        reduction: str = Reduction.AUTO,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(reduction, name)
        self.fn = fn
        self._arguments = kwargs
        for key, value in kwargs.items():
            setattr(self, key, value)

    def call(self, y_true: TensorLike, y_pred: TensorLike) -> TensorLike:
        """Call the function."""
        y_true, y_pred = match_last_dimension(y_true, y_pred)
        return self.fn(y_true, y_pred, **self._arguments)

    def get_config(self) -> Config:
        """Return the configuration."""
        fn = registry.get_registered_name(self.fn)
        return {**super().get_config(), **self._arguments, "fn": fn}


class _DefinedLoss(LossFunctionWrapper):
    """Base class of the losses in this package.

    Keras 2.13 and later write their configurations with the name of the function, which is ignored.
    """

    @classmethod
    def from_config(cls, config: Config) -> Loss:
        """Create a loss from its configuration."""
        return cls(**{key: value for key, value in config.items() if key != "fn"})


def format_example(call: str, value: str) -> str:
    """Format a docstring section with a call and its rounded result."""
    return f"\nExample:\n  >>> import meshflow as tf\n  >>> round(float({call}), 3)\n  {value}\n"


def format_formula(fn: Callable[..., Any], prefix: str = "") -> str:
    """Copy the formula section from the docstring of a function."""
    section = (inspect.getdoc(fn) or "").partition("\nFormula:\n")[2].partition("\n\n")[0]
    return f"\n\nFormula:\n  {prefix}{section.strip()}" if section else ""


def define_loss(
    name: str,
    fn: Callable[..., Any],
    doc: str,
    default_name: str | None = None,
    omitted: tuple[str, ...] = (),
    *,
    example: tuple[str, str],
) -> type[LossFunctionWrapper]:
    """Define a loss class for a function of (y_true, y_pred, ...).

    Args:
      name: Name of the class.
      fn: The function; its other arguments become arguments of the class.
      doc: First line of the docstring.
      default_name: Default of the argument `name`; the name of the function by default.
      omitted: Arguments of the function that the class does not have.
      example: Call of the class, and its result.

    Returns:
      The class.
    """
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    base = {
        "reduction": inspect.Parameter("reduction", kind, default=Reduction.AUTO),
        "name": inspect.Parameter("name", kind, default=default_name or fn.__name__),
    }
    extra = {
        p.name: p
        for p in list(inspect.signature(fn).parameters.values())[2:]
        if p.name not in omitted
    }
    order = [*extra, *base]
    signature = inspect.Signature([{**extra, **base}[n] for n in order])

    def __init__(self: LossFunctionWrapper, *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}: {error}. It takes {signature}.") from None
        bound.apply_defaults()
        LossFunctionWrapper.__init__(self, fn, **bound.arguments)

    parameter = inspect.Parameter("self", kind)
    __init__.__signature__ = inspect.Signature([parameter, *signature.parameters.values()])  # type: ignore[attr-defined]
    arguments = "".join(f"  {n}: See `tf.keras.losses.{fn.__name__}`.\n" for n in extra)
    text = (
        f"{doc}{format_formula(fn)}\n\nArgs:\n{arguments}  reduction: See `tf.keras.losses.Reduction`.\n"
        "  name: Name of the loss.\n" + format_example(f"tf.keras.losses.{example[0]}", example[1])
    )
    body = {"__init__": __init__, "__doc__": text, "__module__": "meshflow.keras.losses"}
    return type(name, (_DefinedLoss,), body)
