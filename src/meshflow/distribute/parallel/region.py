"""The region of a training step: loss and gradients computed device by device under `jax.shard_map`.

The forward pass and the loss are traced once for a *share*: the examples of one device and one
micro-batch. The region runs the share on every device, gathers sharded weights, and reduces the
gradients. Sharded values enter as the parts that devices hold, and gradients leave with the
sharding of the optimizer's states. The other parts of the step, such as the optimizer, see global
arrays with layouts.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.gradients.rematerialization import OPAQUE_ZERO
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.tracing.trace import TracedFunction, trace
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import string
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.values.withheld_text import make_withheld_text
from meshflow.core.variables.variable import Variable, VariableAggregation
from meshflow.distribute.parallel.gradient_compression import CompressedExchange
from meshflow.distribute.parallel.program import LossProgram, RegionResult, RegionStrategy
from meshflow.distribute.parallel.stage_programs import find_read_state
from meshflow.distribute.parallel.weight_reads import gather_weights_on_read, manual_axes_scope
from meshflow.distribute.parallel.zero import (
    RegionSharding,
    gather_values,
    reduce_gradients,
    resolve_region_sharding,
)
from meshflow.distribute.replicas.shares import (
    BatchShares,
    LocalPart,
    get_captured_variable,
    shares_scope,
)
from meshflow.environment.types import Atom, Jaxpr, PyTree
from meshflow.passes.stacking import stack_layers

# Variables about which a warning was issued, by their ids.
_warned_states: weakref.WeakValueDictionary[int, Variable] = weakref.WeakValueDictionary()


@dataclasses.dataclass
class PartitionedBatch:
    """A global batch and its partition into shares.

    Attributes:
      leaves: Tensors of the batch, without strings, which the host has replaced by other tensors.
      structure: Structure of the batch, with None for elements that are not tensors.
      divided: Whether devices take different examples. Otherwise each device computes all of them.
      micro_batches: Number of parts that the examples of a device are split into.
    """

    leaves: list[Tensor]
    structure: Any
    divided: bool
    micro_batches: int

    def rebuild(self, leaves: Sequence[Any]) -> PyTree:
        """Return the structure of the batch with the leaves of a share, and placeholders for strings."""
        supply = iter(leaves)
        rows = next((leaf.shape[0] for leaf in leaves if leaf.ndim), 1)

        def get_leaf(value: Any) -> Any:
            if _is_text(value):
                return Tensor(make_withheld_text((rows, *value.shape[1:])))
            return None if value is None else next(supply)

        return nest.map_structure(get_leaf, self.structure)


def partition_batch(batch: PyTree, devices: int, micro_batches: int) -> PartitionedBatch:
    """Partition a batch over devices and into micro-batches of equal size.

    If the batch size is not divisible by the number of devices, each device computes all examples.
    The last batch of an epoch may have any size; it has the next larger number of micro-batches
    that divides it.

    Args:
      batch: The global batch.
      devices: Number of devices that share the batch.
      micro_batches: Requested number of micro-batches.

    Returns:
      The partitioned batch.
    """
    leaves = [convert_to_tensor(v) for v in nest.flatten(batch) if not (v is None or _is_text(v))]
    sizes = {leaf.shape[0] for leaf in leaves if leaf.ndim}
    divided = all(size % devices == 0 for size in sizes)
    local = {size // devices if divided else size for size in sizes}
    count = min(micro_batches, *local) if local else 1
    while any(size % count for size in local):
        count += 1
    return PartitionedBatch(leaves, batch, divided, count)


def _is_text(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype is string


def split_micro_batches(leaves: Sequence[jax.Array], count: int) -> list[jax.Array]:
    """Return a device's examples with a new first axis of micro-batches.

    Args:
      leaves: Arrays with a first axis of rows, and scalars, which all micro-batches have.
      count: Number of micro-batches.
    """
    return [
        v.reshape(count, v.shape[0] // count, *v.shape[1:])
        if v.ndim
        else jnp.broadcast_to(v, (count,))
        for v in leaves
    ]


def warn_about_remainders(strategy: RegionStrategy, batch: PartitionedBatch, devices: int) -> None:
    """Warn if the first batch cannot be partitioned as requested; later batches have the same size.

    Args:
      strategy: The strategy.
      batch: The batch.
      devices: Number of devices that share the batch.
    """
    if strategy.has_divided:
        return
    strategy.has_divided = True
    requested, rows = strategy.options.micro_batches, [v.shape[0] for v in batch.leaves if v.ndim]
    if rows and (not batch.divided or batch.micro_batches != requested):
        effect = (
            "" if batch.divided else f"all of it is computed by each of the {devices} devices, "
        )
        warnings.warn(
            f"MeshStrategy: a batch of {rows[0]} rows does not divide into {devices} devices x "
            f"micro_batches={requested}: {effect}in {batch.micro_batches} micro-batches. Use a multiple of "
            f"{devices * requested} rows.",
            stacklevel=2,
        )


def warn_about_states(
    captured: Iterable[tuple[Atom, Any]],
    writes: Sequence[Variable],
    jaxpr: Jaxpr,
    outputs: Sequence[Atom],
) -> None:
    """Warn once about a variable that each micro-batch updates before the next one computes with it.

    Args:
      captured: Inputs of the program of a share, with their captures.
      writes: The variables that it writes.
      jaxpr: The program.
      outputs: Its results.
    """
    state = find_read_state(captured, writes, jaxpr.eqns, outputs)
    if state is not None and id(state) not in _warned_states:
        _warned_states[id(state)] = state
        warnings.warn(
            f"MeshStrategy: a layer computes with the variable {state.name}, which it also writes, so each of the micro-batches "
            "updates it, and losses differ from those of the complete batch. Use micro_batches=1 to update it once per step.",
            stacklevel=2,
        )


def warn_about_statistics(shares: BatchShares) -> None:
    """Warn once for each strategy about a layer that normalizes rows by statistics of their micro-batch."""
    layer, strategy = shares.batch_normalization, shares.strategy
    is_different = layer is not None and shares.micro_batches > 1 and not shares.defers_statistics
    if is_different and strategy.warns_about_statistics:
        strategy.warns_about_statistics = False
        warnings.warn(
            f"MeshStrategy: the batch normalization {layer!r} uses the statistics of each of the {shares.micro_batches} "
            "micro-batches, so losses differ from those of the complete batch. Use micro_batches=1, or a layer without "
            "statistics of the batch, such as GroupNormalization. With deferred_batch_norm=True, the moving averages are "
            "those of complete batches, and this warning is omitted.",
            stacklevel=2,
        )


def compute_region_gradients(
    strategy: RegionStrategy, program: LossProgram, x: PyTree, y: PyTree, sample_weight: PyTree
) -> RegionResult:
    """Compute loss and gradients of a global batch; see `MeshStrategy.compute_gradients`."""
    axes = strategy.batch_dimensions
    sizes = [strategy.mesh.dim_size(a) for a in axes]
    devices = math.prod(sizes)
    batch = partition_batch((x, y, sample_weight), devices, strategy.options.micro_batches)
    warn_about_remainders(strategy, batch, devices)
    shares = BatchShares(strategy, axes, sizes, batch.micro_batches, batch.divided)
    traced = trace_share(shares, program, batch)
    if shares.micro_batches > 1:
        jaxpr = traced.closed_jaxpr.jaxpr
        captured = zip(jaxpr.invars[len(batch.leaves) :], traced.captures, strict=True)
        warn_about_states(captured, traced.writes, jaxpr, jaxpr.outvars[: traced.num_results])
        warn_about_statistics(shares)
    region = _RegionProgram(
        strategy, shares, batch, traced, list(program.variables), program.needs_gradient_norms
    )
    errors: list[Variable] = []
    operands: list[Any] = [batch.leaves, traced.get_captured_tensors(), [], []]
    if strategy.options.compress and shares.axes:
        region.exchange = CompressedExchange(strategy, program)
        errors = region.exchange.slots
        operands[2:] = [slot.value() for slot in errors], region.exchange.operands
    op = Op("region", lambda o, _: region.run(*o), differentiable=False, is_foldable=False)
    outputs = list(apply(op, operands))
    squares = outputs.pop() if region.measures else None
    for slot, value in zip(errors, outputs[len(outputs) - len(errors) :], strict=True):
        slot.assign(value)
    gradients, state, results = region.split_outputs(outputs[: len(outputs) - len(errors)])
    traced.assign_variables(state)
    shares.finish()
    _, _, noted, predictions = traced.rebuild_result([None, *results])
    return RegionResult(
        noted, gradients, predictions, squares, shares.num_row_parts * shares.micro_batches
    )


def trace_share(
    shares: BatchShares, program: LossProgram, batch: PartitionedBatch
) -> TracedFunction:
    """Trace the program for the examples of one device and one micro-batch.

    Args:
      shares: Shares of the batch.
      program: Forward pass and loss.
      batch: The partitioned batch.

    Returns:
      The trace. Its results are the loss, the values of the means over all shares, the values for
      metrics, and the predictions.
    """
    parts = shares.micro_batches * (shares.num_devices if batch.divided else 1)

    def spec(leaf: Tensor) -> TensorSpec:
        shape = tuple(leaf.shape)
        return TensorSpec((shape[0] // parts, *shape[1:]) if shape else shape, leaf.dtype)

    def share(*leaves: PyTree) -> PyTree:
        # The function may be traced twice.
        shares.totals.clear()
        shares.finishers.clear()
        with shares_scope(shares), gather_weights_on_read(shares, program):
            loss, noted, predictions = program.run(*batch.rebuild(leaves))
        return loss, [t.value for t in shares.totals], noted, predictions

    pairs = list(zip(shares.axes, shares.sizes, strict=True))
    specs = tuple(spec(v) for v in batch.leaves)
    with manual_axes_scope(shares):
        return trace(share, specs, name="share", axes=pairs, isolated=True)


class _RegionProgram:
    """Program over the mesh that runs the share on every device, one micro-batch after the other.

    Args:
      strategy: The strategy.
      shares: Shares of the batch.
      batch: The partitioned batch.
      traced: Trace of the share; see `trace_share`.
      variables: Variables to differentiate with respect to.
      measures: Whether to compute the sum of the squared norms of the shares' gradients.
    """

    def __init__(
        self,
        strategy: RegionStrategy,
        shares: BatchShares,
        batch: PartitionedBatch,
        traced: TracedFunction,
        variables: list[Variable],
        measures: bool,
    ) -> None:
        self.shares, self.batch, self.traced = shares, batch, traced
        self.measures = measures
        # A recomputed layer is a unit, and equal units can become a loop. On CPUs the conditionals
        # of recomputation bound memory already, and stacked weights need more of it.
        stack = strategy.options.stack
        if stack is None:
            stack = bool(shares.recompute) and jax.default_backend() != "cpu"
        self._program = stack_layers(traced.closed_jaxpr) if stack else None
        self.zero = strategy.options.zero
        # The files in which activations wait for the backward pass.
        self.scratch = strategy.scratch
        self.mesh = strategy.mesh.jax_mesh
        self.shardings = [resolve_region_sharding(strategy, c) for c in traced.captures]
        variable_indices = {id(v): i for i, v in enumerate(variables)}
        # The captures to differentiate with respect to, each with the index of its variable.
        self.trained = [
            (i, variable_indices[id(get_captured_variable(c))])
            for i, c in enumerate(traced.captures)
            if id(get_captured_variable(c)) in variable_indices
        ]
        self.num_variables = len(variables)
        local_parts = [c for c in traced.captures if isinstance(c, LocalPart)]
        if measures and local_parts:
            raise InvalidValueError(
                f"AdaScale: several devices compute the gradient of {local_parts[0].name} together, and none knows its own, "
                f"under the options {strategy.options.get_non_defaults()}. Leave recompute or zero=3 out. Experts that are split "
                "over the batch's devices have no such gradient."
            )
        # The compressed exchange of gradients, if the options request one.
        self.exchange: CompressedExchange | None = None
        written = {id(v): k for k, v in enumerate(traced.writes)}
        self.state_captures = [
            (i, written[id(c)]) for i, c in enumerate(traced.captures) if id(c) in written
        ]

    # ---- over the mesh ---------------------------------------------------------------------

    def run(
        self,
        leaves: Sequence[jax.Array],
        captures: Sequence[jax.Array],
        errors: Sequence[jax.Array],
        values: Sequence[jax.Array],
    ) -> list[Any]:
        """Run the region on global arrays.

        Args:
          leaves: Tensors of the batch.
          captures: Values of the captures.
          errors: Values of the exchange's `slots`.
          values: Values of the exchange's `operands`.

        Returns:
          Gradients by capture, new state, the share's results without its loss, new errors, and the
          squared norms if they are needed.
        """
        if not self.shares.axes:
            return self._run_on_device(list(leaves), list(captures), [], [])
        rows = PartitionSpec(self.shares.axes) if self.batch.divided else PartitionSpec()
        row_specs = [rows if leaf.ndim else PartitionSpec() for leaf in leaves]
        specs = [sharding.spec for sharding in self.shardings]
        out = [self.shardings[i].gradient_spec for i, _ in self.trained]
        out += [PartitionSpec()] * len(self.traced.writes)
        avals = self.traced.closed_jaxpr.out_avals[1 : self.traced.num_results]
        out += [self._get_result_spec(a, rows) for a in avals]
        by_device = [PartitionSpec(self.shares.axes)] * len(errors)
        mapped = jax.shard_map(
            self._run_on_device,
            mesh=self.mesh,
            in_specs=(row_specs, specs, by_device, [PartitionSpec()] * len(values)),
            out_specs=[*out, *by_device, *[PartitionSpec()] * self.measures],
            axis_names=set(self.shares.axes),
            check_vma=False,
        )
        return list(mapped(list(leaves), list(captures), list(errors), list(values)))

    def split_outputs(
        self, outputs: list[Tensor]
    ) -> tuple[list[Tensor | None], list[Tensor], list[Tensor]]:
        """Split outputs of `run` into gradients by variable, new state, and further results."""
        gradients: list[Any] = [None] * self.num_variables
        for (_, index), value in zip(self.trained, outputs, strict=False):
            known = gradients[index]
            gradients[index] = value if known is None else known + value
        first = len(self.trained)
        second = first + len(self.traced.writes)
        return gradients, outputs[first:second], outputs[second:]

    def _is_rows(self, aval: jax.ShapeDtypeStruct) -> bool:
        return bool(aval.shape) and aval.shape[0] == self._share_rows

    @functools.cached_property
    def _share_rows(self) -> int:
        return next(
            (
                a.shape[0]
                for a in self.traced.closed_jaxpr.in_avals[: len(self.batch.leaves)]
                if a.shape
            ),
            1,
        )

    def _get_result_spec(self, aval: jax.ShapeDtypeStruct, rows: PartitionSpec) -> PartitionSpec:
        return rows if self._is_rows(aval) else PartitionSpec()

    # ---- on one device ---------------------------------------------------------------------

    def _run_on_device(
        self,
        leaves: list[jax.Array],
        captures: list[jax.Array],
        errors: list[jax.Array],
        values: list[jax.Array],
    ) -> list[Any]:
        count = self.shares.micro_batches
        captures = gather_values(self.shardings, captures)
        captures = self._compute_totals(leaves, captures)
        state = [captures[i] for i, _ in self.state_captures]
        if count == 1:
            gradients, state, results = self._differentiate_share(captures, state, leaves)
            squares = self._sum_squared_norms(gradients)
        else:
            gradients, state, results, squares = self._accumulate_shares(captures, state, leaves)
        if count == 1 or not self._reduces_each_share:
            gradients, errors = self._reduce_gradients(gradients, errors, values)
        # Gradients of several shares are summed in float32 or wider.
        dtypes = [captures[i].dtype for i, _ in self.trained]
        gradients = [g.astype(dtype) for g, dtype in zip(gradients, dtypes, strict=True)]
        new = self._merge_state(captures, state)
        averaged = [
            r if self._is_rows(a) else self._average(r)
            for r, a in zip(results, self._result_avals, strict=True)
        ]
        return [*gradients, *new, *averaged, *errors, *([squares] if self.measures else [])]

    def _sum_squared_norms(self, gradients: list[jax.Array]) -> jax.Array | float:
        """Sum the squared norms of the gradients of the devices' own losses."""
        if not self.measures:
            return 0.0
        total: Any = sum(jnp.sum(jnp.square(g.astype(jnp.float32))) for g in gradients)
        total = total * self.shares.count**2
        return lax.psum(total, self.shares.axes) if self.shares.num_row_parts > 1 else total

    def _reduce_gradients(
        self, gradients: list[jax.Array], errors: list[jax.Array], values: list[jax.Array]
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """Reduce gradients over the devices, and return them with the new errors of compression."""
        if self.exchange is None:
            return reduce_gradients(self._trained_shardings, gradients), errors
        ids = [id(get_captured_variable(self.traced.captures[i])) for i, _ in self.trained]
        compressible = list(zip(ids, gradients, self._trained_shardings, strict=True))
        return self.exchange.reduce_gradients(compressible, errors, values)

    @property
    def _reduces_each_share(self) -> bool:
        """Whether the gradients of each share are reduced, because devices hold parts of sums."""
        # With `zero=1` the full gradients are summed over the shares and sent once. With `zero=2`
        # and 3 those of each share are sent.
        return self.zero >= 2 and self.exchange is None

    def _compute_totals(
        self, leaves: list[jax.Array], captures: list[jax.Array]
    ) -> list[jax.Array]:
        """Return the captures with the means over all shares, which are computed first."""
        if not self.shares.totals:
            return captures
        result_indices = {id(t): 1 + k for k, t in enumerate(self.shares.totals)}
        totals = [
            (i, result_indices[id(c)])
            for i, c in enumerate(self.traced.captures)
            if id(c) in result_indices
        ]

        values = lambda rows: self.traced.run_for_results([k for _, k in totals], rows, captures)
        means = [
            v.mean(0)
            for v in lax.map(values, split_micro_batches(leaves, self.shares.micro_batches))
        ]
        captures = list(captures)
        for (i, _), mean in zip(totals, means, strict=True):
            captures[i] = self._average(mean)
        return captures

    def _run_share_program(
        self, leaves: list[jax.Array], captures: list[jax.Array]
    ) -> list[jax.Array]:
        if self._program is None:
            return self.traced.run_on_arrays(leaves, captures)
        return self._program(*leaves, *captures)

    @property
    def _trained_shardings(self) -> list[RegionSharding]:
        return [self.shardings[i] for i, _ in self.trained]

    @property
    def _result_avals(self) -> list[Any]:
        return list(self.traced.closed_jaxpr.out_avals[1 : self.traced.num_results])

    def _differentiate_share(
        self, captures: list[jax.Array], state: list[jax.Array], leaves: list[jax.Array]
    ) -> tuple[list[jax.Array], list[jax.Array], list[jax.Array]]:
        """Compute the local gradients, the new state, and the results of one share."""
        inputs = list(captures)
        for i, capture in enumerate(self.traced.captures):
            if capture is OPAQUE_ZERO and self.scratch is not None:
                inputs[i] = self.scratch.free_all(captures[i], leaves[0])
        for (i, _), value in zip(self.state_captures, state, strict=True):
            inputs[i] = value

        def compute_loss(trained: list[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
            values = list(inputs)
            for (i, _), value in zip(self.trained, trained, strict=True):
                values[i] = value
            outputs = self._run_share_program(leaves, values)
            return widen(outputs[0]) / self.shares.count, outputs[1:]

        (_, rest), gradients = jax.value_and_grad(compute_loss, has_aux=True)(
            [inputs[i] for i, _ in self.trained]
        )
        results, written = rest[: self.traced.num_results - 1], rest[self.traced.num_results - 1 :]
        return gradients, [written[k] for _, k in self.state_captures], results

    def _accumulate_shares(
        self, captures: list[jax.Array], state: list[jax.Array], leaves: list[jax.Array]
    ) -> tuple[list[jax.Array], list[jax.Array], list[jax.Array], jax.Array]:
        """Compute the shares of one device, one after the other; gradients are summed in float32 or wider."""
        reduces_each = self._reduces_each_share
        shardings = self._trained_shardings
        values = [captures[i] for i, _ in self.trained]
        sums = [
            widen(jnp.zeros(k.get_gradient_shape(v.shape, reduces_each), v.dtype))
            for k, v in zip(shardings, values, strict=True)
        ]

        def step(carry: PyTree, rows: list[Any]) -> PyTree:
            state, sums, squares = carry
            gradients, state, results = self._differentiate_share(captures, state, rows)
            squares = squares + self._sum_squared_norms(gradients)
            if reduces_each:
                gradients = reduce_gradients(shardings, gradients)
            sums = [s + g.astype(s.dtype) for s, g in zip(sums, gradients, strict=True)]
            return (state, sums, squares), results

        first = state, sums, jnp.zeros((), jnp.float32)
        (state, sums, squares), outputs = lax.scan(
            step, first, split_micro_batches(leaves, self.shares.micro_batches)
        )
        results = [
            r.reshape(-1, *r.shape[2:]) if self._is_rows(a) else r.mean(0).astype(a.dtype)
            for r, a in zip(outputs, self._result_avals, strict=True)
        ]
        return sums, state, results, squares

    def _average(self, value: jax.Array) -> jax.Array:
        if self.shares.num_devices == 1 or not jnp.issubdtype(value.dtype, jnp.floating):
            return value
        return lax.pmean(widen(value), self.shares.axes).astype(value.dtype)

    def _merge_state(self, captures: list[jax.Array], state: list[jax.Array]) -> list[jax.Array]:
        """Merge the state written in the forward pass: sums are added, other values averaged."""
        new: list[Any] = [None] * len(self.traced.writes)
        for (i, k), value in zip(self.state_captures, state, strict=True):
            aggregation = getattr(self.traced.writes[k], "aggregation", VariableAggregation.NONE)
            is_summed = aggregation is VariableAggregation.SUM and self.shares.num_row_parts > 1
            if is_summed and jnp.issubdtype(value.dtype, jnp.number):
                value = captures[i] + lax.psum(value - captures[i], self.shares.axes)
            else:
                value = self._average(value)
            new[k] = value
        return new


def widen(value: jax.Array) -> jax.Array:
    """Convert a value to float32 or wider, in which sums over shares are computed."""
    return value.astype(jnp.promote_types(value.dtype, jnp.float32))
