"""The region: loss and gradients computed device by device, each on its rows, in the middle of a step.

What comes in are the parts that devices hold; what goes out are gradients that lie as their states do.
Everything else of the step, such as the optimizer, sees whole arrays in layouts.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.gradients.recompute import ZERO
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.tracing.trace import Traced, trace
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable, VariableAggregation
from meshflow.distribute.parallel.compress import Exchange
from meshflow.distribute.parallel.program import Gradients, LossProgram
from meshflow.distribute.parallel.reading import manual, reading_parts
from meshflow.distribute.parallel.zero import Kept, kept_like
from meshflow.distribute.replicas.shares import LocalPart, Shares, in_shares, variable_of
from meshflow.passes.stacking import stacked

__all__ = ["region_gradients"]


@dataclasses.dataclass
class _Batch:
    """A global batch and how it is divided.

    Attributes:
      leaves: its tensors.
      structure: the batch with None for what is no tensor.
      divided: whether devices take different rows; otherwise all take all of them.
      micro_batches: how many parts a device's rows are divided into.
    """

    leaves: list[Tensor]
    structure: Any
    divided: bool
    micro_batches: int

    def rebuild(self, leaves: Sequence[Any]) -> Any:
        """The batch's structure with other leaves."""
        supply = iter(leaves)
        return nest.map_structure(lambda v: None if v is None else next(supply), self.structure)


def divide(batch: Any, devices: int, micro_batches: int) -> _Batch:
    """How a batch is divided: evenly over the devices if they divide it, and then into micro-batches of equal size.

    The last batch of an epoch may have any size: it has the next number of micro-batches that divides it.
    """
    leaves = [convert_to_tensor(v) for v in nest.flatten(batch) if v is not None]
    sizes = {leaf.shape[0] for leaf in leaves if leaf.ndim}
    divided = all(size % devices == 0 for size in sizes)
    local = {size // devices if divided else size for size in sizes}
    count = min(micro_batches, *local) if local else 1
    while any(size % count for size in local):
        count += 1
    return _Batch(leaves, batch, divided, count)


def warn_of_remainders(strategy: Any, batch: _Batch, devices: int) -> None:
    """Warns of a first batch, which is as large as others, that is not divided as the options say."""
    if strategy.has_divided:
        return
    strategy.has_divided = True
    asked, rows = strategy.options.micro_batches, [v.shape[0] for v in batch.leaves if v.ndim]
    if rows and (not batch.divided or batch.micro_batches != asked):
        done = "" if batch.divided else f"all of it is computed by each of the {devices} devices, "
        warnings.warn(
            f"MeshStrategy: a batch of {rows[0]} rows does not divide into {devices} devices x micro_batches={asked}: "
            f"{done}in {batch.micro_batches} micro-batches. Take a multiple of {devices * asked} rows.",
            stacklevel=2,
        )


def region_gradients(
    strategy: Any, program: LossProgram, x: Any, y: Any, sample_weight: Any
) -> Gradients:
    """Loss and gradients of a global batch; see `MeshStrategy.gradients`."""
    axes = strategy.batch_dimensions
    sizes = [strategy.mesh.dim_size(a) for a in axes]
    batch = divide((x, y, sample_weight), _product(sizes), strategy.options.micro_batches)
    warn_of_remainders(strategy, batch, _product(sizes))
    shares = Shares(strategy, axes, sizes, batch.micro_batches, batch.divided)
    traced = _trace_share(shares, program, batch)
    region = _Region(strategy, shares, batch, traced, list(program.variables), program.measures)
    errors: list[Variable] = []
    operands: list[Any] = [batch.leaves, traced.captured_tensors(), [], []]
    if strategy.options.compress and shares.axes:
        region.exchange = Exchange(strategy, program)
        errors = region.exchange.slots
        operands[2:] = [slot.value() for slot in errors], region.exchange.operands
    op = Op("region", lambda o, _: region.run(*o), differentiable=False, is_foldable=False)
    outputs = list(apply(op, operands))
    squares = outputs.pop() if region.measures else None
    for slot, value in zip(errors, outputs[len(outputs) - len(errors) :], strict=True):
        slot.assign(value)
    gradients, state, results = region.sorted(outputs[: len(outputs) - len(errors)])
    traced.assign(state)
    _, _, noted, predictions = traced.rebuild([None, *results])
    return Gradients(
        noted, gradients, predictions, squares, shares.row_parts * shares.micro_batches
    )


def _trace_share(shares: Shares, program: LossProgram, batch: _Batch) -> Traced:
    """The program traced for one device's rows of one micro-batch."""
    parts = shares.micro_batches * (shares.devices if batch.divided else 1)

    def spec(leaf: Tensor) -> TensorSpec:
        shape = tuple(leaf.shape)
        return TensorSpec((shape[0] // parts, *shape[1:]) if shape else shape, leaf.dtype)

    def share(*leaves: Any) -> Any:
        # A trace may be made twice.
        shares.totals.clear()
        with in_shares(shares), reading_parts(shares):
            loss, noted, predictions = program.run(*batch.rebuild(leaves))
        return loss, [t.value for t in shares.totals], noted, predictions

    pairs = list(zip(shares.axes, shares.sizes, strict=True))
    specs = tuple(spec(v) for v in batch.leaves)
    with manual(shares):
        return trace(share, specs, name="share", axes=pairs, isolated=True)


class _Region:
    """One program over the mesh: the share on every device, micro-batch after micro-batch.

    Args:
      strategy: the strategy.
      shares: the shares.
      batch: the batch.
      traced: the share's program: loss, values of the totals, noted values, predictions.
      variables: the variables to differentiate by.
      measures: whether the sum of the squared norms of the shares' gradients is wanted.
    """

    def __init__(
        self,
        strategy: Any,
        shares: Shares,
        batch: _Batch,
        traced: Traced,
        variables: list[Variable],
        measures: bool,
    ) -> None:
        self.shares, self.batch, self.traced = shares, batch, traced
        self.measures = measures
        # Layers that are computed again are units, of which equal ones become a loop. On CPUs branches bound memory
        # already, and stacks take more of it.
        stack = strategy.options.stack
        if stack is None:
            stack = bool(shares.recompute) and jax.default_backend() != "cpu"
        self._program = stacked(traced.closed) if stack else None
        self.zero = strategy.options.zero
        # The files that what layers keep goes to.
        self.scratch = strategy.scratch
        self.mesh = strategy.mesh.jax_mesh
        self.kept = [kept_like(strategy, c) for c in traced.captures]
        places = {id(v): i for i, v in enumerate(variables)}
        # The captures to differentiate by, each with the number of its variable.
        self.trained = [
            (i, places[id(variable_of(c))])
            for i, c in enumerate(traced.captures)
            if id(variable_of(c)) in places
        ]
        self.wanted = len(variables)
        apart = [c for c in traced.captures if isinstance(c, LocalPart)]
        if measures and apart:
            raise InvalidValueError(
                f"AdaScale: the gradient of {apart[0].name} is made by several devices together, and none knows its own, "
                f"under the options {strategy.options.chosen()}. Leave recompute or zero=3 out; of experts that are split "
                "over the batch's devices there is no such gradient."
            )
        # How gradients are sent in few bits.
        self.exchange: Exchange | None = None
        written = {id(v): k for k, v in enumerate(traced.writes)}
        self.state_at = [
            (i, written[id(c)]) for i, c in enumerate(traced.captures) if id(c) in written
        ]

    # ---- over the mesh ---------------------------------------------------------------------

    def run(
        self,
        leaves: Sequence[Any],
        captures: Sequence[Any],
        errors: Sequence[Any],
        values: Sequence[Any],
    ) -> list[Any]:
        """Gradients by capture, new state, the share's results, new errors, then squared norms, of whole arrays.

        `errors` and `values` are those of the exchange's `slots` and `operands`.
        """
        if not self.shares.axes:
            return self._local(list(leaves), list(captures), [], [])
        rows = PartitionSpec(self.shares.axes) if self.batch.divided else PartitionSpec()
        rows_of = [rows if leaf.ndim else PartitionSpec() for leaf in leaves]
        specs = [kept.spec for kept in self.kept]
        out = [self.kept[i].gradient_spec for i, _ in self.trained]
        out += [PartitionSpec()] * len(self.traced.writes)
        avals = self.traced.closed.out_avals[1 : self.traced.count]
        out += [self._result_spec(a, rows) for a in avals]
        by_device = [PartitionSpec(self.shares.axes)] * len(errors)
        mapped = jax.shard_map(
            self._local,
            mesh=self.mesh,
            in_specs=(rows_of, specs, by_device, [PartitionSpec()] * len(values)),
            out_specs=[*out, *by_device, *[PartitionSpec()] * self.measures],
            axis_names=set(self.shares.axes),
            check_vma=False,
        )
        return list(mapped(list(leaves), list(captures), list(errors), list(values)))

    def sorted(self, outputs: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Outputs of `run` as gradients by variable, new state, and the share's results but for its loss."""
        gradients: list[Any] = [None] * self.wanted
        for (_, number), value in zip(self.trained, outputs, strict=False):
            known = gradients[number]
            gradients[number] = value if known is None else known + value
        first = len(self.trained)
        second = first + len(self.traced.writes)
        return gradients, outputs[first:second], outputs[second:]

    def _is_rows(self, aval: Any) -> bool:
        return bool(aval.shape) and aval.shape[0] == self._share_rows

    @functools.cached_property
    def _share_rows(self) -> int:
        return next(
            (a.shape[0] for a in self.traced.closed.in_avals[: len(self.batch.leaves)] if a.shape),
            1,
        )

    def _result_spec(self, aval: Any, rows: PartitionSpec) -> PartitionSpec:
        return rows if self._is_rows(aval) else PartitionSpec()

    # ---- on one device ---------------------------------------------------------------------

    def _local(
        self, leaves: list[Any], captures: list[Any], errors: list[Any], values: list[Any]
    ) -> list[Any]:
        count = self.shares.micro_batches
        captures = [k.whole(c) for k, c in zip(self.kept, captures, strict=True)]
        captures = self._with_totals(leaves, captures)
        state = [captures[i] for i, _ in self.state_at]
        if count == 1:
            gradients, state, results = self._share(captures, state, leaves)
            squares = self._squares(gradients)
        else:
            gradients, state, results, squares = self._in_turn(captures, state, leaves)
        if count == 1 or not self._early:
            gradients, errors = self._collected(gradients, errors, values)
        # Those of several shares are summed in float32.
        avals = [captures[i].dtype for i, _ in self.trained]
        gradients = [g.astype(dtype) for g, dtype in zip(gradients, avals, strict=True)]
        new = self._written(captures, state)
        averaged = [
            r if self._is_rows(a) else self._mean(r)
            for r, a in zip(results, self._result_avals, strict=True)
        ]
        return [*gradients, *new, *averaged, *errors, *([squares] if self.measures else [])]

    def _squares(self, gradients: list[Any]) -> Any:
        """The sum of the devices' squared norms, of gradients of the shares' own losses."""
        if not self.measures:
            return 0.0
        own: Any = sum(jnp.sum(jnp.square(g.astype(jnp.float32))) for g in gradients)
        own = own * self.shares.count**2
        return lax.psum(own, self.shares.axes) if self.shares.row_parts > 1 else own

    def _collected(
        self, gradients: list[Any], errors: list[Any], values: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Gradients as all devices together make them, and the new errors."""
        if self.exchange is None:
            pairs = zip(self._kept_trained, gradients, strict=True)
            return [kept.collected(gradient) for kept, gradient in pairs], errors
        ids = [id(variable_of(self.traced.captures[i])) for i, _ in self.trained]
        wanted = list(zip(ids, gradients, self._kept_trained, strict=True))
        return self.exchange.collected(wanted, errors, values)

    @property
    def _early(self) -> bool:
        """Whether devices bring together the gradients of each share: they hold parts of the sums only."""
        # With `zero=1` whole gradients are summed and sent once, beyond it each share's are sent.
        return self.zero >= 2 and self.exchange is None

    def _with_totals(self, leaves: list[Any], captures: list[Any]) -> list[Any]:
        """The captures with means over all shares in their places: those parts of the program run first."""
        if not self.shares.totals:
            return captures
        number = {id(t): 1 + k for k, t in enumerate(self.shares.totals)}
        places = [(i, number[id(c)]) for i, c in enumerate(self.traced.captures) if id(c) in number]

        values = lambda rows: self.traced.some([k for _, k in places], rows, captures)
        means = [v.mean(0) for v in lax.map(values, self._micro_batches(leaves))]
        captures = list(captures)
        for (i, _), mean in zip(places, means, strict=True):
            captures[i] = self._mean(mean)
        return captures

    def _arrays(self, leaves: list[Any], captures: list[Any]) -> list[Any]:
        if self._program is None:
            return self.traced.arrays(leaves, captures)
        return self._program(*leaves, *captures)

    def _micro_batches(self, leaves: list[Any]) -> list[Any]:
        """A device's rows with a first axis of micro-batches."""
        count = self.shares.micro_batches
        return [
            v.reshape(count, v.shape[0] // count, *v.shape[1:])
            if v.ndim
            else jnp.broadcast_to(v, (count,))
            for v in leaves
        ]

    @property
    def _kept_trained(self) -> list[Kept]:
        return [self.kept[i] for i, _ in self.trained]

    @property
    def _result_avals(self) -> list[Any]:
        return list(self.traced.closed.out_avals[1 : self.traced.count])

    def _share(self, captures: list[Any], state: list[Any], leaves: list[Any]) -> Any:
        """One share: gradients as they are before devices bring them together, new state, results."""
        inputs = list(captures)
        for i, capture in enumerate(self.traced.captures):
            if capture is ZERO and self.scratch is not None:
                inputs[i] = self.scratch.fresh(captures[i], leaves[0])
        for (i, _), value in zip(self.state_at, state, strict=True):
            inputs[i] = value

        def loss_of(trained: list[Any]) -> Any:
            full = list(inputs)
            for (i, _), value in zip(self.trained, trained, strict=True):
                full[i] = value
            outputs = self._arrays(leaves, full)
            return outputs[0].astype(jnp.float32) / self.shares.count, outputs[1:]

        (_, rest), gradients = jax.value_and_grad(loss_of, has_aux=True)(
            [inputs[i] for i, _ in self.trained]
        )
        results, written = rest[: self.traced.count - 1], rest[self.traced.count - 1 :]
        return gradients, [written[k] for _, k in self.state_at], results

    def _in_turn(self, captures: list[Any], state: list[Any], leaves: list[Any]) -> Any:
        """The shares of one device, one after the other; gradients are summed in float32."""
        early = self._early
        kept = self._kept_trained
        values = [captures[i] for i, _ in self.trained]
        sums = [
            jnp.zeros(k.part_shape(v.shape, early), jnp.float32)
            for k, v in zip(kept, values, strict=True)
        ]

        def step(carry: Any, rows: list[Any]) -> Any:
            state, sums, squares = carry
            gradients, state, results = self._share(captures, state, rows)
            squares = squares + self._squares(gradients)
            if early:
                gradients = [k.collected(g) for g, k in zip(gradients, kept, strict=True)]
            sums = [s + g.astype(s.dtype) for s, g in zip(sums, gradients, strict=True)]
            return (state, sums, squares), results

        first = state, sums, jnp.zeros((), jnp.float32)
        (state, sums, squares), stacked = lax.scan(step, first, self._micro_batches(leaves))
        results = [
            r.reshape(-1, *r.shape[2:]) if self._is_rows(a) else r.mean(0).astype(a.dtype)
            for r, a in zip(stacked, self._result_avals, strict=True)
        ]
        return sums, state, results, squares

    def _mean(self, value: Any) -> Any:
        if self.shares.devices == 1 or not jnp.issubdtype(value.dtype, jnp.floating):
            return value
        return lax.pmean(value.astype(jnp.float32), self.shares.axes).astype(value.dtype)

    def _written(self, captures: list[Any], state: list[Any]) -> list[Any]:
        """State written in the forward pass, as all devices' rows together make it."""
        new: list[Any] = [None] * len(self.traced.writes)
        for (i, k), value in zip(self.state_at, state, strict=True):
            how = getattr(self.traced.writes[k], "aggregation", VariableAggregation.NONE)
            added = how is VariableAggregation.SUM and self.shares.row_parts > 1
            if added and jnp.issubdtype(value.dtype, jnp.number):
                value = captures[i] + lax.psum(value - captures[i], self.shares.axes)
            else:
                value = self._mean(value)
            new[k] = value
        return new


def _product(sizes: Sequence[int]) -> int:
    return functools.reduce(lambda a, b: a * b, sizes, 1)
