"""What a traced share of a batch knows of the whole: a micro-batch on one device."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.gradients.recompute import HostMemory, Waiting
from meshflow.core.runtime.context import context
from meshflow.core.values.tensor import Tensor
from meshflow.placement.layout import dimensions_of

__all__ = ["LocalPart", "Shares", "current_shares", "in_shares", "variable_of"]


class Shares:
    """The shares that a batch is divided into while a region computes loss and gradients.

    The loss of the batch is the mean of those of the shares: a mean over rows is the share's own mean, a sum
    over rows counts `count` times.

    Args:
      strategy: the strategy.
      axes: the mesh dimensions that rows are divided over.
      sizes: the sizes of these.
      micro_batches: how many shares a device has, one after the other.
      divided: whether devices have different rows; otherwise all compute the same.

    Attributes:
      count: how many shares there are.
      noted: (metric, value) pairs of means that are to be updated by the whole batch's value.
      totals: the means over all shares that were asked for.
      inside: whether a layer is running that is computed again as one.
    """

    def __init__(
        self,
        strategy: Any,
        axes: Sequence[str],
        sizes: Sequence[int],
        micro_batches: int,
        divided: bool = True,
    ) -> None:
        self.strategy = strategy
        self.axes = tuple(axes)
        self.sizes = tuple(sizes)
        self.micro_batches = micro_batches
        self.divided = divided
        self.noted: list[tuple[Any, Any]] = []
        self.totals: list[Total] = []
        self.inside = False
        self._local: dict[int, LocalPart] = {}

    @property
    def devices(self) -> int:
        """How many devices divide the rows."""
        count = 1
        for size in self.sizes:
            count *= size
        return count

    @property
    def row_parts(self) -> int:
        """Into how many parts the rows that are computed at the same time are divided."""
        return self.devices if self.divided else 1

    @property
    def count(self) -> int:
        """How many shares there are in all."""
        return self.devices * self.micro_batches

    def note(self, metric: Any, value: Any) -> None:
        """Has a metric updated by the mean of a value over all shares.

        Args:
          metric: a metric of means.
          value: this share's.
        """
        self.noted.append((metric, value))

    def mean(self, value: Tensor) -> Tensor:
        """The mean over the devices that compute their shares at the same time; gradients flow through it.

        Args:
          value: this device's.
        """
        return apply(_mean, (value,), (self.axes,)) if self.devices > 1 else value

    def mean_of_all(self, value: Tensor) -> Tensor:
        """The mean over all shares, also those that are computed later; no gradient flows through it.

        What it is the mean of must follow from the batch alone, such as how many labels count.

        Args:
          value: this share's, a scalar.
        """
        total = Total(value)
        self.totals.append(total)
        return total._as_tensor()

    def local(self, variable: Any) -> Tensor:
        """This device's part of a weight that a rule splits over dimensions of the batch, such as experts.

        Nothing is gathered, and its gradient is not summed over these dimensions: what arrives from other devices
        must come by the layer's own exchange.

        Args:
          variable: the weight.
        """
        parts = self._local
        if id(variable) not in parts:
            parts[id(variable)] = LocalPart(variable, self.axes)
        return parts[id(variable)]._as_tensor()

    @property
    def recompute(self) -> Any:
        """What the backward pass computes again; see `ParallelOptions`."""
        return self.strategy.options.recompute

    def waiting(self, layer: str) -> Waiting | None:
        """Where what the backward pass needs of a layer waits for it; None on the device.

        Args:
          layer: the layer's name.
        """
        if not self.strategy.options.offloads("activations", layer):
            return None
        return self.strategy.scratch or HostMemory()


class Total:
    """What a trace reads in place of a mean over all shares, which is computed before them.

    Args:
      value: the share's value.
    """

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


class LocalPart:
    """What a trace reads in place of a variable: the part of it that is on this device.

    Args:
      variable: the variable.
      axes: the mesh dimensions that devices are told apart by.
    """

    _write_only = False

    def __init__(self, variable: Any, axes: Sequence[str]) -> None:
        self.variable = variable
        self.name = variable.name
        self.dtype = variable.dtype
        layout, shape = variable.layout, []
        for size, spec in zip(variable._shape, layout.sharding_specs, strict=True):
            for name in dimensions_of(spec, layout.mesh):
                size //= layout.mesh.dim_size(name) if name in axes else 1
            shape.append(size)
        self._shape = tuple(shape)

    def _as_tensor(self) -> Tensor:
        if _current.shares is None or context.trace is None:
            return self.variable._as_tensor()
        return context.trace.read(self)


def variable_of(capture: Any) -> Any:
    """The variable of which a trace reads a part, or what it reads itself."""
    return capture.variable if isinstance(capture, LocalPart) else capture


# Each device differentiates its own loss: what others owe to a mean comes back by the same mean.
_mean = Op("mean_over_devices", lambda o, s: jax.lax.pmean(o[0], s[0]), is_foldable=False)


class _Current(threading.local):
    def __init__(self) -> None:
        self.shares: Shares | None = None


_current = _Current()


def current_shares() -> Shares | None:
    """The shares of the region that is being traced, or None."""
    return _current.shares


@contextmanager
def in_shares(shares: Shares | None) -> Iterator[None]:
    """Makes shares the current ones."""
    saved = _current.shares, context.on_parts
    _current.shares, context.on_parts = shares, shares is not None
    try:
        yield
    finally:
        _current.shares, context.on_parts = saved
