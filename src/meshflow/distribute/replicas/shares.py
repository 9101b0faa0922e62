"""Shares of a batch: micro-batches on one device, with access to values of all shares."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.gradients.rematerialization import FetchChain, HostMemory, ResidualStorage
from meshflow.core.runtime.context import context
from meshflow.core.values.tensor import Tensor, TensorLike, read_tensor
from meshflow.core.variables.variable import VariableAggregation, get_value_shape
from meshflow.placement.layout import list_spec_dimensions

if TYPE_CHECKING:
    from meshflow.core.variables.variable import Variable

_Capture = TypeVar("_Capture")


class Rematerialization:
    """Rematerialization of layers by the options of a strategy.

    Args:
      strategy: The strategy.

    Attributes:
      totals: Means over all shares that the trace has requested.
      in_rematerialized_layer: Whether the trace is inside a layer that is rematerialized as a unit.
      unit_trace: Trace of this layer.
      released: Ids of the sharded weights that layers gather for each pass and release after it.
      gathers: Order in which layers gather weights.
    """

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self.totals: list[ShareTotal] = []
        self.in_rematerialized_layer = False
        self.unit_trace: Any = None
        self.released: set[int] = set()
        self.gathers = FetchChain()

    @property
    def recompute(self) -> str | Callable[..., Any] | None:
        """Return the option `recompute` of `ParallelOptions`."""
        return self.strategy.options.recompute

    def get_residual_storage(self, layer: str) -> ResidualStorage | None:
        """Return the storage for the residuals of a layer, or None if they remain on the device."""
        return None


class BatchShares(Rematerialization):
    """Partition of a batch into shares while a region computes the loss and gradients.

    The loss of the batch is the mean of the losses of the shares. A mean over rows is therefore
    computed within the share; a sum over rows is multiplied by `sum_factor`.

    `splits_draws` is true if shares draw parts of the batch's random numbers; otherwise each device has
    a key.

    Args:
      strategy: Strategy that computes the region.
      axes: Mesh dimensions that rows are split over.
      sizes: Sizes of these dimensions.
      micro_batches: Number of shares of a device, which it computes one after the other.
      divided: Whether devices have different rows; otherwise, all compute the same rows.

    Attributes:
      metric_values: Pairs (metric, value) of means that are updated with the value of the full batch.
      copies_kernels: Whether products of split sequences may take copies of kernels; see
        `get_weight_copies`.
      in_pipeline: Whether stages of a pipeline compute the shares.
      finishers: Functions that run after the shares, with the values of their sums over the batch.
      repetitions: How often the traced code repeats each row, 1 but for `scale_user_loss` of Keras.
      batch_normalization: Name of a layer that normalizes rows by statistics of their share, or None.
    """

    splits_draws = False
    in_pipeline: bool

    def __init__(
        self,
        strategy: Any,
        axes: Sequence[str],
        sizes: Sequence[int],
        micro_batches: int,
        divided: bool = True,
    ) -> None:
        super().__init__(strategy)
        self.axes = tuple(axes)
        self.sizes = tuple(sizes)
        self.micro_batches = micro_batches
        self.splits_rows = divided
        self.metric_values: list[tuple[object, TensorLike]] = []
        self.copies_kernels = False
        self.in_pipeline = strategy.options.pipeline is not None
        self.finishers: list[Callable[[], None]] = []
        self.repetitions = 1
        self.batch_normalization: str | None = None
        self._local_parts: dict[int, LocalPart] = {}
        self._gathered_weights: dict[int, GatheredWeight] = {}
        self._weight_copies: dict[int, WeightCopies] = {}

    @property
    def num_devices(self) -> int:
        """Return the number of devices that the rows are split over."""
        count = 1
        for size in self.sizes:
            count *= size
        return count

    @property
    def num_row_parts(self) -> int:
        """Return the number of parts of the rows that are computed at the same time."""
        return self.num_devices if self.splits_rows else 1

    @property
    def count(self) -> int:
        """Return the number of shares."""
        return self.num_devices * self.micro_batches

    @property
    def sum_factor(self) -> float:
        """Return the factor of a sum over the rows of a share, the mean of which is the sum over the batch."""
        return self.num_row_parts * self.micro_batches / self.repetitions

    def record_metric(self, metric: object, value: TensorLike) -> None:
        """Record a value, with the mean of which over all shares a metric is updated."""
        self.metric_values.append((metric, value))

    def mean(self, value: Tensor) -> Tensor:
        """Average a value over the devices that compute at the same time, with a gradient."""
        return apply(_mean, (value,), (self.axes,)) if self.num_devices > 1 else value

    def mean_over_all_shares(self, value: Tensor) -> Tensor:
        """Average a value over all shares, including those that are computed later; without gradient.

        The value must depend on the batch only, such as the number of labels that are not masked.
        """
        total = ShareTotal(value)
        self.totals.append(total)
        return read_tensor(total)

    def sum_over_batch(
        self, values: dict[str, Tensor], finish: Callable[[dict[str, Tensor]], None]
    ) -> None:
        """Sum values over all shares of a batch, and use the sums after the last one.

        Args:
          values: Values of a share by name.
          finish: Function of the sums.
        """
        sums = {name: BatchSum(name, value) for name, value in values.items()}

        def run() -> None:
            totals = {name: cell.total for name, cell in sums.items() if cell.total is not None}
            if len(totals) == len(sums):
                finish(totals)

        self.finishers.append(run)

    def finish(self) -> None:
        """Use the sums over the batch, after the region has assigned them."""
        for finisher in self.finishers:
            finisher()

    @property
    def defers_statistics(self) -> bool:
        """Return the option `deferred_batch_norm` of `ParallelOptions`."""
        return self.strategy.options.deferred_batch_norm

    def get_local_part(self, variable: Variable) -> Tensor:
        """Return this device's part of a weight that is split over batch dimensions, such as experts.

        The weight is not gathered, and its gradient is not summed over these dimensions: the layer
        itself must exchange values with the other devices.
        """
        parts = self._local_parts
        if id(variable) not in parts:
            parts[id(variable)] = LocalPart(variable, self.axes)
        return read_tensor(parts[id(variable)])

    def get_gathered_weight(self, variable: Variable) -> GatheredWeight:
        """Return the placeholder for a sharded weight that a rematerialized layer gathers."""
        return self._gathered_weights.setdefault(id(variable), GatheredWeight(variable, self))

    def get_weight_copies(self, variable: Variable, axes: tuple[str, ...]) -> Tensor | None:
        """Return a weight with a first axis of copies, one for each device along mesh dimensions.

        Each device computes with its own copy, so that the gradient is summed over these dimensions
        together with those of the batch.

        Args:
          variable: The weight.
          axes: The mesh dimensions.

        Returns:
          The copies, split over the dimensions; None if they are not available here.
        """
        if not self.copies_kernels or (
            id(variable) in self.released and not self.in_rematerialized_layer
        ):
            return None
        copies = self._weight_copies.setdefault(id(variable), WeightCopies(variable, axes, self))
        return read_tensor(copies)

    def get_residual_storage(self, layer: str) -> ResidualStorage | None:
        """Return the storage for the residuals of a layer, or None if they remain on the device."""
        if not self.strategy.options.is_offloaded("activations", layer):
            return None
        return self.strategy.scratch or HostMemory()


class ShareTotal:
    """Placeholder that a trace reads for a mean over all shares, which is computed before them."""

    _write_only = False
    name = "total"

    def __init__(self, value: Tensor) -> None:
        self.value = value
        self.dtype = value.dtype
        self._shape = tuple(value.shape)

    def _as_tensor(self) -> Tensor:
        if _current.shares is not None and context.trace is not None:
            return context.trace.read(self)
        return Tensor(np.zeros(self._shape, self.dtype.dtype))


class BatchSum:
    """Placeholder that a trace writes for a sum over all shares; the region assigns it afterwards.

    Args:
      name: Name for messages.
      value: Summand of the share that is being traced.

    Attributes:
      total: The sum, or None before the region has run.
    """

    _write_only = False
    aggregation = VariableAggregation.SUM

    def __init__(self, name: str, value: Tensor) -> None:
        self.name, self.dtype, self._shape = name, value.dtype, value.shape
        self.total: Tensor | None = None
        assert context.trace is not None
        context.trace.write(self, context.trace.read(self) + value)

    def _as_tensor(self) -> Tensor:
        if _current.shares is not None and context.trace is not None:
            return context.trace.read(self)
        return Tensor(np.zeros(tuple(self._shape), self.dtype.dtype))

    def _write(self, value: Tensor) -> None:
        if _current.shares is not None and context.trace is not None:
            context.trace.write(self, value)
        else:
            self.total = value


class LocalPart:
    """Placeholder that a trace reads for the part of a variable on this device."""

    _write_only = False

    def __init__(self, variable: Variable, axes: Sequence[str]) -> None:
        self.variable = variable
        self.name = variable.name
        self.dtype = variable.dtype
        layout, shape = variable.layout, []
        for size, spec in zip(get_value_shape(variable), layout.sharding_specs, strict=True):
            for name in list_spec_dimensions(spec, layout.mesh):
                size //= layout.mesh.dim_size(name) if name in axes else 1
            shape.append(size)
        self._shape = tuple(shape)

    def _as_tensor(self) -> Tensor:
        if _current.shares is None or context.trace is None:
            return self.variable.value()
        return context.trace.read(self)


class GatheredWeight:
    """Placeholder that the trace of a layer reads for a sharded weight.

    The operand of the layer's program is the part on this device, which the program gathers.
    """

    _write_only = False

    def __init__(self, variable: Variable, shares: BatchShares) -> None:
        self.variable, self.shares = variable, shares
        self.name = variable.name
        self.dtype = variable.dtype
        self._shape = tuple(get_value_shape(variable))

    def _as_tensor(self) -> Tensor:
        return self.shares.get_local_part(self.variable)


class WeightCopies(GatheredWeight):
    """Placeholder that a trace reads for copies of a weight along mesh dimensions."""

    def __init__(self, variable: Variable, axes: tuple[str, ...], shares: BatchShares) -> None:
        super().__init__(variable, shares)
        self.axes = axes
        mesh = variable.layout.mesh
        self._shape = (math.prod(mesh.dim_size(a) for a in axes), *self._shape)

    def _as_tensor(self) -> Tensor:
        if _current.shares is None or context.trace is None:
            return self.variable.value()
        scope: Any = context.trace
        unit = self.shares.unit_trace
        while scope is not None and scope is not unit:
            scope = scope.parent
        if scope is None and id(self.variable) in self.shares.released:
            return super()._as_tensor()
        return context.trace.read(self)


def get_captured_variable(capture: _Capture | LocalPart | GatheredWeight) -> _Capture | Variable:
    """Return the variable of a placeholder, or another captured object itself."""
    return capture.variable if isinstance(capture, (LocalPart, GatheredWeight)) else capture


# Each device differentiates its own loss; gradients with respect to a mean are averaged over the
# devices, too.
_mean = Op("mean_over_devices", lambda o, s: jax.lax.pmean(o[0], s[0]), is_foldable=False)


class _StepState(threading.local):
    def __init__(self) -> None:
        self.shares: BatchShares | None = None
        self.rematerialization: Rematerialization | None = None


_current = _StepState()


def current_shares() -> BatchShares | None:
    """Return the shares of the region that is being traced, or None."""
    return _current.shares


def current_rematerialization() -> Rematerialization | None:
    """Return the rematerialization of the layers that are traced: of the region, or of `rematerialization_scope`."""
    return _current.shares or _current.rematerialization


@contextmanager
def rematerialization_scope(strategy: Any) -> Iterator[None]:
    """Rematerialize the layers that are called outside of a region, by the options of a strategy."""
    saved, _current.rematerialization = _current.rematerialization, Rematerialization(strategy)
    try:
        yield
    finally:
        _current.rematerialization = saved


@contextmanager
def shares_scope(shares: BatchShares | None) -> Iterator[None]:
    """Set the shares of the current thread."""
    saved = _current.shares, context.in_shard_region
    _current.shares, context.in_shard_region = shares, shares is not None
    try:
        yield
    finally:
        _current.shares, context.in_shard_region = saved
