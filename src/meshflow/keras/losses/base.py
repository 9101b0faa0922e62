"""`Loss`: weighting and reduction of per-example losses."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from meshflow.core.functions.stateless import call_stateless, traced_by_jax
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.symbolic_sizes import any_symbolic
from meshflow.distribute.replicas.context import spanning
from meshflow.distribute.replicas.shares import current_shares
from meshflow.keras import registry, settings
from meshflow.ops import array, math


class Reduction:
    """How per-example losses become one number.

    `AUTO` and `SUM_OVER_BATCH_SIZE` give the mean, `SUM` the sum, `NONE` all of them.

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
        """All kinds."""
        return cls.AUTO, cls.NONE, cls.SUM, cls.SUM_OVER_BATCH_SIZE

    @classmethod
    def validate(cls, key: str) -> None:
        """Raises ValueError for an unknown kind."""
        if key not in (*cls.all(), "mean"):
            raise ValueError(f'Invalid Reduction Key: {key}. Expected keys are "{cls.all()}"')


class Loss:
    """Base class of losses; subclasses define `call(y_true, y_pred)`.

    Args:
      reduction: see `tf.keras.losses.Reduction`.
      name: the loss's name.

    Example:
      >>> import meshflow as tf
      >>> class Cubic(tf.keras.losses.Loss):
      ...     def call(self, y_true, y_pred):
      ...         return tf.reduce_mean(tf.abs(y_true - y_pred) ** 3, axis=-1)
      >>> Cubic()([[0.0], [0.0]], [[1.0], [3.0]], sample_weight=[2.0, 0.0]).numpy().tolist()
      1.0
    """

    # Whether a compiled model divides the loss by the number of replicas.
    _scaled_by_model = False

    def __init__(self, reduction: str | None = Reduction.AUTO, name: str | None = None) -> None:
        reduction = Reduction.NONE if reduction is None else reduction
        Reduction.validate(reduction)
        self.reduction = reduction
        self.name = name

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """The reduced loss.

        Args:
          y_true: targets.
          y_pred: predictions.
          sample_weight: weights of examples (or of elements).

        Returns:
          A scalar, or one value per example without reduction; an array of JAX where one of its transformations
          calls it, such as `jax.grad`.
        """
        if traced_by_jax((y_true, y_pred, sample_weight)):
            return call_stateless(self._reduced, [], [], (y_true, y_pred, sample_weight))[0]
        return self._reduced(y_true, y_pred, sample_weight)

    def _reduced(self, y_true: Any, y_pred: Any, sample_weight: Any) -> Any:
        self._check_scale()
        y_pred = convert_to_tensor(y_pred)
        mask = getattr(y_pred, "_keras_mask", None)
        losses = self.call(convert_to_tensor(y_true), y_pred)
        counted = getattr(losses, "_keras_mask", None)
        if counted is not None and self.reduction in (
            Reduction.AUTO,
            Reduction.SUM_OVER_BATCH_SIZE,
        ):
            # The mean over the losses that count, as a mean over all of them.
            share = math.reduce_mean(math.cast(counted, losses.dtype))
            shares = current_shares()
            share = share if shares is None else shares.mean_of_all(share)
            losses = losses * math.divide_no_nan(1.0, share)
        if mask is not None:
            mask = math.cast(mask, losses.dtype)
            sample_weight = (
                mask if sample_weight is None else _times(convert_to_tensor(sample_weight), mask)
            )
        return reduce_weighted(losses, sample_weight, self.reduction)

    def _check_scale(self) -> None:
        # A mean over one replica's examples, summed over replicas, is too large by their number.
        means = self.reduction in (Reduction.AUTO, Reduction.SUM_OVER_BATCH_SIZE)
        if means and spanning() is not None and not self._scaled_by_model:
            raise ValueError(
                "Please use `tf.keras.losses.Reduction.SUM` or `tf.keras.losses.Reduction.NONE` for loss "
                f"reduction of {type(self).__name__} in tf.distribute.Strategy.run, and divide by the global "
                "batch size: tf.nn.compute_average_loss(losses, global_batch_size=...). Model.compile() and "
                "fit() do so by themselves."
            )

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """One loss per example."""
        raise NotImplementedError("Must be implemented in subclasses.")

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {"reduction": self.reduction, "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """The loss with a configuration."""
        return cls(**config)


def _times(a: Any, b: Any) -> Any:
    a = math.cast(a, b.dtype)
    a, b = match_rank(a, b), match_rank(b, a)
    return a * b


def match_rank(weights: Any, values: Any) -> Any:
    """Weights with the rank of values: a last dimension of 1 dropped or dimensions added."""
    w, v = len(weights.shape), len(values.shape)
    if w == v + 1 and weights.shape[-1] == 1:
        return array.squeeze(weights, -1)
    while 0 < len(weights.shape) < v:
        weights = array.expand_dims(weights, -1)
    return weights


def match_last_dimension(y_true: Any, y_pred: Any) -> tuple[Any, Any]:
    """Labels and predictions of one rank where a last dimension of 1 is all that is in the way."""
    if len(y_true.shape) == len(y_pred.shape) + 1 and y_true.shape[-1] == 1:
        y_true = array.squeeze(y_true, -1)
    elif len(y_pred.shape) == len(y_true.shape) + 1 and y_pred.shape[-1] == 1:
        y_pred = array.squeeze(y_pred, -1)
    return y_true, y_pred


def reduce_weighted(losses: Any, sample_weight: Any, reduction: str) -> Any:
    """Weighted losses, reduced."""
    losses = convert_to_tensor(losses)
    if not losses.dtype.is_floating:
        losses = math.cast(losses, settings.floatx())
    if sample_weight is not None:
        weights = math.cast(convert_to_tensor(sample_weight), losses.dtype)
        if len(losses.shape) == 0 and len(weights.shape) == 1 and weights.shape[0] == 1:
            weights = array.squeeze(weights)
        losses = losses * match_rank(weights, losses)
    if reduction == Reduction.NONE:
        return losses
    if reduction == Reduction.SUM:
        return math.reduce_sum(losses)
    if losses.shape.rank and any_symbolic(losses.shape):
        # A function that is saved for any size.
        return math.reduce_mean(losses)
    count = max(losses.shape.num_elements() or 0, 1)
    return math.reduce_sum(losses) / float(count)


class LossFunctionWrapper(Loss):
    """A loss made of a function of (y_true, y_pred).

    Args:
      fn: the function.
      reduction: see `tf.keras.losses.Reduction`.
      name: the loss's name.
      **kwargs: further arguments of the function.

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

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The function's value."""
        y_true, y_pred = match_last_dimension(y_true, y_pred)
        return self.fn(y_true, y_pred, **self._arguments)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        fn = registry.get_registered_name(self.fn)
        return {**super().get_config(), **self._arguments, "fn": fn}


class _Defined(LossFunctionWrapper):
    """Of the classes here, whose configurations later versions of Keras write with their function's name."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """The loss with a configuration."""
        return cls(**{key: value for key, value in config.items() if key != "fn"})


def example_text(call: str, value: str) -> str:
    """A docstring's section that shows a call and the number that it gives, to three decimals."""
    return f"\nExample:\n  >>> import meshflow as tf\n  >>> round(float({call}), 3)\n  {value}\n"


def formula_text(fn: Callable[..., Any], before: str = "") -> str:
    """The section of a docstring with a function's formula, taken from the function's own."""
    section = (inspect.getdoc(fn) or "").partition("\nFormula:\n")[2].partition("\n\n")[0]
    return f"\n\nFormula:\n  {before}{section.strip()}" if section else ""


def define(
    name: str,
    fn: Callable[..., Any],
    doc: str,
    default_name: str | None = None,
    left_out: tuple[str, ...] = (),
    *,
    example: tuple[str, str],
) -> type[LossFunctionWrapper]:
    """A loss class for a function of (y_true, y_pred, ...).

    Args:
      name: the class's name.
      fn: the function; its further arguments become the class's.
      doc: one line on what the loss is.
      default_name: default of `name`; default the function's name.
      left_out: arguments of the function that the class does not take.
      example: a call of the class, and the number that it gives.

    Returns:
      The class.
    """
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    own = {
        "reduction": inspect.Parameter("reduction", kind, default=Reduction.AUTO),
        "name": inspect.Parameter("name", kind, default=default_name or fn.__name__),
    }
    extra = {
        p.name: p
        for p in list(inspect.signature(fn).parameters.values())[2:]
        if p.name not in left_out
    }
    order = [*extra, *own]
    signature = inspect.Signature([{**extra, **own}[n] for n in order])

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}: {error}. It takes {signature}.") from None
        given.apply_defaults()
        LossFunctionWrapper.__init__(self, fn, **given.arguments)

    parameter = inspect.Parameter("self", kind)
    __init__.__signature__ = inspect.Signature([parameter, *signature.parameters.values()])  # type: ignore[attr-defined]
    arguments = "".join(f"  {n}: see `tf.keras.losses.{fn.__name__}`.\n" for n in extra)
    text = (
        f"{doc}{formula_text(fn)}\n\nArgs:\n{arguments}  reduction: see `tf.keras.losses.Reduction`.\n"
        "  name: the loss's name.\n" + example_text(f"tf.keras.losses.{example[0]}", example[1])
    )
    body = {"__init__": __init__, "__doc__": text, "__module__": "meshflow.keras.losses"}
    return type(name, (_Defined,), body)
