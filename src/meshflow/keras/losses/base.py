"""Base classes of losses, with weighting and reduction of per-example losses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from meshflow.core.autograph.conversion import convert_if_enabled
from meshflow.core.functions.stateless import call_stateless, is_traced_by_jax
from meshflow.core.runtime.tracebacks import hide_frames_of_methods
from meshflow.core.values.convert import has_registered_conversion
from meshflow.core.values.dtypes import DType, as_dtype, bool_, float32
from meshflow.core.values.symbolic_sizes import has_symbolic_size
from meshflow.core.values.tensor import Tensor, TensorLike, is_tensor
from meshflow.distribute.replicas.context import get_spanning_context
from meshflow.distribute.replicas.shares import current_shares
from meshflow.environment.types import Config, overridable
from meshflow.keras import registry, settings
from meshflow.ops import array, math
from meshflow.ops.ragged import RaggedTensor, convert_values

# Values of `Reduction`, and the names of Keras 3.
ReductionName: TypeAlias = Literal["auto", "none", "sum", "sum_over_batch_size", "mean"]
LossType = TypeVar("LossType", bound="LossFunctionWrapper")


class Reduction:
    """Reductions of per-example losses.

    `AUTO` and `SUM_OVER_BATCH_SIZE` compute the mean, `SUM` the sum; `NONE` keeps all losses.

    Example:
      >>> losses = tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.NONE)
      >>> losses([[0.0], [0.0]], [[1.0], [3.0]]).numpy().tolist()
      [1.0, 9.0]
      >>> losses = tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.SUM)
      >>> losses([[0.0], [0.0]], [[1.0], [3.0]]).numpy().tolist()
      10.0
    """

    AUTO: Final = "auto"
    NONE: Final = "none"
    SUM: Final = "sum"
    SUM_OVER_BATCH_SIZE: Final = "sum_over_batch_size"

    @classmethod
    def all(cls) -> tuple[str, ...]:
        """Return all reductions."""
        return cls.AUTO, cls.NONE, cls.SUM, cls.SUM_OVER_BATCH_SIZE

    @classmethod
    def validate(cls, key: str) -> None:
        """Raise a ValueError for an unknown reduction."""
        if key not in (*cls.all(), "mean"):
            raise ValueError(f'Invalid Reduction Key: {key}. Expected keys are "{cls.all()}"')


@hide_frames_of_methods
class Loss:
    """Base class of losses; subclasses define `call(y_true, y_pred)`.

    Args:
      reduction: See `tf.keras.losses.Reduction`.
      name: Name of the loss.

    Example:
      >>> class Cubic(tf.keras.losses.Loss):
      ...     def call(self, y_true, y_pred):
      ...         return tf.reduce_mean(tf.abs(y_true - y_pred) ** 3, axis=-1)
      >>> Cubic()([[0.0], [0.0]], [[1.0], [3.0]], sample_weight=[2.0, 0.0]).numpy().tolist()
      1.0
    """

    # Whether a compiled model divides the loss by the number of replicas.
    _is_scaled_by_model = False

    def __init__(
        self, reduction: ReductionName | None = Reduction.AUTO, name: str | None = None
    ) -> None:
        reduction = Reduction.NONE if reduction is None else reduction
        Reduction.validate(reduction)
        self.reduction = reduction
        self.name = name

    def __call__(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike = None
    ) -> Tensor:
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
        # A function of the user may take other objects, such as distributions.
        if not has_registered_conversion(y_pred):
            y_pred = convert_values(y_pred)
        mask = getattr(y_pred, "_keras_mask", None)
        losses = convert_values(convert_if_enabled(self.call)(convert_values(y_true), y_pred))
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

    def _get_reduction(self) -> str:
        """Return the reduction; subclasses in libraries call this method."""
        self._check_reduction()
        is_auto = self.reduction == Reduction.AUTO
        return Reduction.SUM_OVER_BATCH_SIZE if is_auto else self.reduction

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

    @overridable
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
    if not losses.shape.is_fully_defined() or has_symbolic_size(losses.shape):
        # The losses of a symbolic tensor of Keras, or of a function that is exported for any size.
        return math.reduce_mean(losses)
    return math.reduce_sum(losses) / float(max(losses.shape.num_elements(), 1))


class LossFunctionWrapper(Loss):
    """Loss that calls a function of (y_true, y_pred).

    Args:
      fn: The function.
      reduction: See `tf.keras.losses.Reduction`.
      name: Name of the loss.
      **kwargs: Other arguments of the function.

    Example:
      >>> loss = tf.keras.losses.LossFunctionWrapper(tf.keras.losses.huber, delta=2.0)
      >>> float(loss([[0.0]], [[5.0]]))
      8.0
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        reduction: ReductionName | None = Reduction.AUTO,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(reduction, name)
        self.fn = fn
        self._arguments = kwargs
        for key, value in kwargs.items():
            setattr(self, key, value)

    @overridable
    def call(self, y_true: TensorLike, y_pred: TensorLike) -> TensorLike:
        """Call the function."""
        if is_tensor(y_pred):
            y_true, y_pred = match_last_dimension(y_true, y_pred)
        return convert_if_enabled(self.fn)(y_true, y_pred, **self._arguments)

    def get_config(self) -> Config:
        """Return the configuration."""
        fn = registry.get_registered_name(self.fn)
        return {**super().get_config(), **self._arguments, "fn": fn}


class FunctionLoss(LossFunctionWrapper):
    """Base class of the losses that `define_loss` completes.

    Keras 2.13 and later write their configurations with the name of the function, which is ignored.
    """

    if TYPE_CHECKING:

        def __init__(
            self, reduction: ReductionName | None = "auto", name: str | None = None
        ) -> None: ...

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


def complete_constructor(
    cls: type,
    fn: Callable[..., Any],
    defaults: Mapping[str, Any],
    construct: Callable[..., None],
    ignored: tuple[str, ...] = (),
) -> inspect.Signature:
    """Replace the declared `__init__` of a class by one that passes its arguments on, after a function.

    Args:
      cls: The class. If it declares no `__init__`, the names in `defaults` are its arguments.
      fn: Argument `fn` of `construct`.
      defaults: Defaults of the common arguments.
      construct: Function of (self, fn, and the arguments by name).
      ignored: Keywords to ignore.

    Returns:
      The signature, without `self`.
    """
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter("self", kind)]
    parameters += [inspect.Parameter(name, kind, default=v) for name, v in defaults.items()]
    if "__init__" in vars(cls):
        declared = inspect.signature(vars(cls)["__init__"]).parameters.values()
        # A declared `**kwargs` has the types of ignored keywords.
        parameters = [p for p in declared if p.kind is kind]
    signature = inspect.Signature(parameters[1:])

    def __init__(self: object, *args: Any, **kwargs: Any) -> None:
        for name in ignored:
            kwargs.pop(name, None)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{cls.__name__}: {error}. It takes {signature}.") from None
        bound.apply_defaults()
        construct(self, fn, **bound.arguments)

    __init__.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    cls.__init__ = __init__  # type: ignore[misc]
    return signature


def define_loss(
    fn: Callable[..., Any], *, default_name: str | None = None, example: tuple[str, str]
) -> Callable[[type[LossType]], type[LossType]]:
    """Decorate the declaration of a loss class that calls a function of (y_true, y_pred, ...).

    Args:
      fn: The function; its other arguments are those of the class.
      default_name: Default of the argument `name`; the name of the function by default.
      example: Call of the class, and its result.
    """

    def complete(cls: type[LossType]) -> type[LossType]:
        common = {"reduction": Reduction.AUTO, "name": default_name or fn.__name__}
        signature = complete_constructor(cls, fn, common, LossFunctionWrapper.__init__)
        arguments = "".join(
            f"  {n}: See `tf.keras.losses.{fn.__name__}`.\n"
            for n in signature.parameters
            if n not in common
        )
        cls.__doc__ = (
            f"{cls.__doc__}{format_formula(fn)}\n\nArgs:\n{arguments}"
            "  reduction: See `tf.keras.losses.Reduction`.\n  name: Name of the loss.\n"
            + format_example(f"tf.keras.losses.{example[0]}", example[1])
        )
        return cls

    return complete
