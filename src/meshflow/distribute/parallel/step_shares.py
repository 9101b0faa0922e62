"""Traces of a `train_step` that computes gradients itself, for a share of the batch.

In the trace, the gradients of a tape with respect to variables are placeholders for those of the
batch, so the code that follows, such as clipping and optimizers, computes with values of the batch.
`step_region.py` computes the values of the placeholders.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.operation import Op
from meshflow.core.gradients.tape import GradientTape
from meshflow.core.gradients.tape_nodes import to_dense
from meshflow.core.runtime import philox
from meshflow.core.runtime.context import ActiveTrace, context
from meshflow.core.tracing.trace import TracedFunction, trace
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import float32, float64, int32
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike, read_tensor
from meshflow.core.variables.random_streams import share_streams_again
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.region import PartitionedBatch
from meshflow.distribute.parallel.weight_reads import manual_axes_scope
from meshflow.distribute.replicas.shares import BatchShares, ShareTotal, shares_scope
from meshflow.environment.types import JaxprEqn, PyTree
from meshflow.ops import array, math

# The numbers start at 1, because 0 would be false.
_trace_numbers = itertools.count(1)


class StepNotSplitError(Exception):
    """A training step cannot be computed in shares of a batch; the message is the reason."""


class ShareIndex:
    """Placeholder of the index of a share."""

    _write_only = False
    _shape = ()
    name, dtype = "share", int32

    def _as_tensor(self) -> Tensor:
        assert context.trace is not None
        return context.trace.read(self)


class GradientTotal(ShareTotal):
    """Placeholder of the gradient of a batch.

    Args:
      value: Gradient of the share.
      variable: The variable that it belongs to.
      objective: Index of the objective in `StepShares.objectives`.
    """

    def __init__(self, value: Tensor, variable: Variable, objective: int) -> None:
        super().__init__(value)
        self.variable, self.objective = variable, objective


class _Draws:
    """Random numbers of a share; see `philox.ShareDraws`.

    A draw belongs to rows if its size is proportional to that of the share, which a trace for
    another size shows.

    Args:
      shares: The shares.
      other: Draws of a trace for several times as many rows; None in that trace itself.

    Attributes:
      counts: Numbers of counters of the draws so far, in the share.
      shapes: Shapes of the arrays that were drawn so far.
      num_split: Number of arrays of which the share draws a part.
    """

    def __init__(self, shares: StepShares, other: _Draws | None) -> None:
        self.shares, self.other = shares, other
        self.start()

    def start(self) -> None:
        """Start a trace."""
        self.counts: list[int | jax.Array] = []
        self.shapes: list[tuple[int, ...]] = []
        self.num_split = 0

    def count(self, used: int | jax.Array) -> int | jax.Array:
        self.counts.append(used)
        return self.scale(used) if self._has_rows(len(self.counts) - 1) else used

    @property
    def ratio(self) -> int:
        """Return the number of rows of the other trace for each row of this one."""
        return self.other.shares.repetitions if self.other is not None else 1

    def scale(self, used: int | jax.Array) -> int | jax.Array:
        """Return the number of counters of the batch for a draw with rows."""
        return used if self.other is None else used * self.shares.num_parts

    def _has_rows(self, draw: int) -> bool:
        known = [] if self.other is None else self.other.counts
        return draw < len(known) and bool(known[draw] == self.ratio * self.counts[draw])

    def make_indices(self, shape: tuple[int, ...]) -> jax.Array:
        draw = len(self.shapes)
        self.shapes.append(shape)
        known = [] if self.other is None else self.other.shapes
        if draw >= len(known) or known[draw] == shape:
            return philox.make_indices(shape)
        rows = self.shares.share_rows
        if not shape or known[draw] != (self.ratio * shape[0], *shape[1:]) or shape[0] % rows:
            raise StepNotSplitError(
                f"draws random numbers of shape {shape}, the first axis of which is not that of the batch"
            )
        self.num_split += 1
        assert context.trace is not None
        index = read_tensor(self.shares.index).array
        return philox.make_indices(shape, index, rows, self.shares.num_parts)

    def check_split(self) -> None:
        """Check that the share drew parts of all arrays with rows."""
        if sum(map(self._has_rows, range(len(self.counts)))) > self.num_split:
            raise StepNotSplitError("draws random numbers of a kind that is not split by rows")


class StepShares(BatchShares):
    """Shares of the batch of a step that computes gradients itself.

    Args:
      strategy: Strategy that computes the step.
      axes: Mesh dimensions that rows are split over.
      sizes: Sizes of these dimensions.
      batch: The partitioned batch.
      repetitions: Number of times that a share has its rows, as if the batch had fewer shares.
      other: Shares with more rows that were traced before, if this trace is to run; otherwise
        None.
      in_pipeline: Whether stages of a pipeline compute the shares.

    Attributes:
      share_rows: Number of rows of a share.
      num_rows: Number of rows of the batch.
      index: Placeholder of the index of the share.
      trace_number: Number of the trace in progress, among all traces of shares.
      objectives: Sums of the targets of the tapes.
      source_shapes: Shapes of the tensors that the step differentiates with respect to.
      custom_gradients: For each custom gradient whether it is proportional to that of its result.
    """

    splits_draws = True
    draws: _Draws

    def __init__(
        self,
        strategy: Any,
        axes: Sequence[str],
        sizes: Sequence[int],
        batch: PartitionedBatch,
        repetitions: int = 1,
        other: StepShares | None = None,
        in_pipeline: bool = False,
    ) -> None:
        super().__init__(strategy, axes, sizes, batch.micro_batches, batch.divided)
        self.in_pipeline = in_pipeline
        self.tapes: list[GradientTape] = []
        self.repetitions = repetitions
        self.num_rows = next((leaf.shape[0] for leaf in batch.leaves if leaf.ndim), 1)
        self.share_rows = self.num_rows // self.num_parts
        self.index = ShareIndex()
        self.draws = _Draws(self, None if other is None else other.draws)
        self.start(None)

    def start(self, scope: ActiveTrace | None) -> None:
        """Start a trace."""
        self.scope = scope
        # Functions are traced again, so that this trace notes their custom gradients and random numbers.
        self.trace_number = next(_trace_numbers)
        self.totals.clear()
        self.finishers.clear()
        self.objectives: list[Tensor] = []
        self.tapes.clear()
        self.source_shapes: list[tuple[int, ...]] = []
        self.custom_gradients: list[bool] = []
        self.draws.start()

    @property
    def num_parts(self) -> int:
        """Return the number of parts of the rows."""
        return self.num_row_parts * self.micro_batches

    def mean_over_all_shares(self, value: Tensor) -> Tensor:
        """Average a value over all shares, without a gradient."""
        self._check_scope()
        return super().mean_over_all_shares(value)

    def record_metric(self, metric: Any, value: TensorLike) -> None:
        """Update a metric with the mean of a value over all shares."""
        mean = self.mean_over_all_shares(convert_to_tensor(value))
        metric.update_state(mean, sample_weight=self.num_rows)

    def add_custom_gradient(self, is_linear: bool) -> None:
        """Note a custom gradient, and whether it is proportional to that of its result."""
        self.custom_gradients.append(is_linear)

    def reduce_gradients(
        self,
        tape: GradientTape,
        targets: Sequence[Tensor],
        seeds: Sequence[Any],
        sources: Sequence[Any],
        gradients: Sequence[Any],
    ) -> list[Any]:
        """Replace gradients of the share by those of the batch.

        Args:
          tape: The tape that computed the gradients.
          targets: Its targets.
          seeds: Their initial gradients, or None.
          sources: Variables and tensors.
          gradients: The gradient of each source, or None.
        """
        if all(g is None for g in gradients):
            return list(gradients)
        self.source_shapes += [
            tuple(s.shape)
            for s, g in zip(sources, gradients, strict=True)
            if g is not None and not isinstance(s, Variable)
        ]
        if not any(
            isinstance(s, Variable) and g is not None
            for s, g in zip(sources, gradients, strict=True)
        ):
            return list(gradients)
        self._check_scope()
        writes = {} if context.trace is None else context.trace.writes
        if self.in_pipeline and any(id(source) in writes for source in sources):
            raise StepNotSplitError("assigns variables before it computes their gradients")
        if any(other is not tape for other in context.tapes):
            raise StepNotSplitError(
                "computes gradients of variables while another tape records them"
            )
        self.tapes.append(tape)
        self.objectives.append(_sum_targets(targets, seeds))
        objective = len(self.objectives) - 1
        results: list[Any] = []
        for source, gradient in zip(sources, gradients, strict=True):
            if gradient is None or not isinstance(source, Variable):
                results.append(gradient)
            else:
                total = GradientTotal(convert_to_tensor(to_dense(gradient)), source, objective)
                self.totals.append(total)
                results.append(read_tensor(total))
        return results

    def _check_scope(self) -> None:
        if context.trace is not self.scope:
            raise StepNotSplitError(
                "computes gradients or losses inside of a tf.function, a branch or a loop"
            )


def _sum_targets(targets: Sequence[Tensor], seeds: Sequence[Any]) -> Tensor:
    """Return the sum of the targets of a tape, weighted by their initial gradients."""
    dtype = float64 if any(t.dtype is float64 for t in targets) else float32
    if len(targets) == 1 and seeds[0] is None and targets[0].dtype is dtype:
        # The step may also use the target itself, such as the loss.
        return targets[0] if not targets[0].ndim else math.reduce_sum(targets[0])
    weigh = lambda t, s: t if s is None else t * math.cast(array.stop_gradient(s), t.dtype)
    terms = [
        math.reduce_sum(math.cast(weigh(t, s), dtype))
        for t, s in zip(targets, seeds, strict=True)
        if t.dtype.is_floating
    ]
    return math.add_n(terms) if terms else convert_to_tensor(jnp.zeros((), np.float32))


_OUTSIDE_OF_TAPE = "outside-of-tape"


def _label_op(op: Op) -> AbstractContextManager[None]:
    """Return a scope that marks the equations of an op if no tape records it; tapes record calls of functions, not their ops."""
    shares = context.batch_gradients
    is_recorded = context.tapes or context.trace is not shares.scope  # type: ignore[union-attr]
    return nullcontext() if is_recorded else jax.named_scope(_OUTSIDE_OF_TAPE)


def is_outside_of_tape(eqn: JaxprEqn) -> bool:
    """Check whether no tape has recorded an equation in the trace of a pipelined step."""
    return _OUTSIDE_OF_TAPE in str(eqn.source_info.name_stack)


@contextmanager
def _derivatives_scope(shares: StepShares) -> Iterator[None]:
    """Keep operations in a form that JAX differentiates as their tape would, if a pipeline computes the gradients."""
    saved = context.outer_tapes, context.label_op
    if shares.in_pipeline:
        context.outer_tapes, context.label_op = True, _label_op
    try:
        yield
    finally:
        context.outer_tapes, context.label_op = saved


@contextmanager
def _gradients_scope(shares: StepShares) -> Iterator[None]:
    saved, context.batch_gradients = context.batch_gradients, shares
    try:
        with (
            shares_scope(shares),
            philox.share_draws_scope(shares.draws),
            _derivatives_scope(shares),
        ):
            yield
    finally:
        context.batch_gradients = saved


def trace_step(
    shares: StepShares, step: Callable[[PyTree], PyTree], batch: PartitionedBatch
) -> TracedFunction:
    """Trace a step for a share.

    Args:
      shares: The shares.
      step: Function of a share of the batch.
      batch: The partitioned batch.

    Returns:
      The trace. Its results are those of the step, the objectives, and the values of the totals of the
      share.
    """

    def spec(leaf: Tensor) -> TensorSpec:
        shape = tuple(leaf.shape)
        rows = shape[0] // shares.num_parts * shares.repetitions if shape else 0
        return TensorSpec((rows, *shape[1:]) if shape else shape, leaf.dtype)

    def run(*leaves: PyTree) -> PyTree:
        shares.start(context.trace)
        read_tensor(shares.index)
        if shares.in_pipeline:
            # The last leaf has the index of each share.
            assert context.trace is not None
            *leaves, indices = leaves  # type: ignore[assignment]
            context.trace.write(shares.index, math.reduce_sum(indices))
        with _gradients_scope(shares):
            result = step(batch.rebuild(leaves))
        return result, shares.objectives, [t.value for t in shares.totals]

    specs = tuple(spec(v) for v in batch.leaves)
    pairs = list(zip(shares.axes, shares.sizes, strict=True))
    with manual_axes_scope(shares), share_streams_again():
        return trace(run, specs, name="share", axes=pairs, isolated=True)
