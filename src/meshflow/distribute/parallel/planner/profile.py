"""What a planner knows of a model: its weights, and for each layer the arithmetic and what the backward pass keeps.

It is read from a traced step of a few examples: from shapes alone, so that the weights need not exist.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.tracing.trace import Traced, trace
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.cutting import Program, size_of
from meshflow.distribute.parallel.options import ParallelOptions
from meshflow.distribute.parallel.planner.exchanges import (
    Attended,
    Experts,
    Product,
    attention_of,
    experts_of,
    products_of,
)
from meshflow.distribute.parallel.planner.splits import Splits, splits_of
from meshflow.distribute.parallel.program import LossProgram
from meshflow.distribute.parallel.stages import LABEL, Layers, balanced
from meshflow.distribute.parallel.zero import free_axis
from meshflow.distribute.replicas.shares import Shares, in_shares
from meshflow.environment.jax_internals import jex_core

__all__ = ["ModelProfile", "Split", "Weight", "profiled"]

# How many examples are traced: what has as many rows is told from what has always one.
ROWS = 2


@dataclasses.dataclass(frozen=True)
class Weight:
    """A trained weight.

    Attributes:
      name: its name.
      shape: its shape.
      bytes: its size.
      slots: the size of the optimizer's state of its shape.
      dims: for each axis the names that rules may call it by; None where nothing names them.
    """

    name: str
    shape: tuple[int, ...]
    bytes: int
    slots: int
    dims: tuple[tuple[str, ...], ...] | None

    def named(self, names: Sequence[str]) -> int | None:
        """The axis that rules for some names split.

        Args:
          names: the names.
        """
        found = [i for i, of_axis in enumerate(self.dims or ()) if set(of_axis) & set(names)]
        return found[0] if found else None

    def free_axis(self, parts: int, taken: Sequence[int | None] = ()) -> int | None:
        """The axis that `zero` and pipelines split over so many devices.

        Args:
          parts: how many.
          taken: the axes that are split already.
        """
        return free_axis(self.shape, parts, taken)


class LayerSums(NamedTuple):
    """What devices sum in a layer of which products are divided; bytes of an example.

    Attributes:
      forward: in the forward pass.
      last: the last of these sums, of what the layer gives.
      backward: in the backward pass.
      each: the same where gradients of one value by several products are not added first.
    """

    forward: int = 0
    last: int = 0
    backward: int = 0
    each: int = 0

    @property
    def again(self) -> int:
        """What is summed again where the layer is computed again: all but what it gives."""
        return self.forward - self.last


@dataclasses.dataclass(frozen=True)
class Split:
    """A model's layers when rules split its weights over some devices; numbers are of one example where they say so.

    Attributes:
      work: multiplications and additions of each layer's forward pass on one device, of an example.
      kept: bytes of what each layer keeps for its backward pass on one device, of an example.
      shared: the same where sequences are split between products, too.
      edges: bytes that each layer gives to others, of an example.
      sums: what the devices sum in each layer.
    """

    work: tuple[float, ...]
    kept: tuple[int, ...]
    shared: tuple[int, ...]
    edges: tuple[int, ...]
    sums: tuple[LayerSums, ...]

    @property
    def total(self) -> LayerSums:
        """The sums of all layers."""
        return LayerSums(*map(sum, zip(*self.sums, strict=True)))


@dataclasses.dataclass(frozen=True, eq=False)
class ModelProfile:
    """A model as a planner sees it.

    Attributes:
      name: the model's.
      layers: the names of its layers, in the order in which they compute.
      weights: its trained weights.
      uses: for each layer the numbers of the weights that it uses.
      other: bytes of all variables that are not split: statistics, metrics, counters.
      example: bytes of one example of a batch, targets included.
      batch: how many examples a step has.
      sequence: the length of its sequences, 0 where it has none.
      results: bytes of what the model predicts for one example.
      attention: what its attention layers exchange where sequences are in parts, None without such layers.
      experts: its layers of experts.
      products: its products with weights.
      own_step: whether its `train_step` computes gradients itself, of a loss that cannot be divided.
    """

    name: str
    layers: tuple[str, ...]
    weights: tuple[Weight, ...]
    uses: tuple[tuple[int, ...], ...]
    other: int
    example: int
    batch: int
    sequence: int
    results: int
    attention: Attended | None
    experts: tuple[Experts, ...]
    products: tuple[Product, ...]
    _traced: _Tracing
    own_step: bool = False

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(int(np.prod(w.shape)) for w in self.weights)

    @property
    def bytes(self) -> int:
        """Bytes of the trained weights."""
        return sum(w.bytes for w in self.weights)

    @property
    def work(self) -> float:
        """Multiplications and additions of an example's forward pass."""
        return sum(self.split((), 1).work)

    def axes(self, names: tuple[str, ...]) -> tuple[int | None, ...]:
        """For each weight the axis that rules for some names split, or None.

        Args:
          names: the names.
        """
        if names not in self._axes:
            self._axes[names] = tuple(w.named(names) for w in self.weights)
        return self._axes[names]

    @functools.cached_property
    def _axes(self) -> dict[tuple[str, ...], tuple[int | None, ...]]:
        return {}

    def split(self, names: tuple[str, ...], parts: int) -> Split:
        """Its layers when the axes of some names are split.

        Args:
          names: the names.
          parts: over how many devices.
        """
        return self._traced.split(self.weights, names if parts > 1 else (), parts)

    def in_parts_of_sequences(self, parts: int) -> Split:
        """Its layers when each of some devices has a part of all sequences.

        Args:
          parts: over how many devices.
        """
        return self._traced.in_parts_of_sequences(self.sequence, parts)

    def stages(self, count: int) -> list[int]:
        """The ends of stages of a pipeline, as it is cut where nobody marks stages.

        Args:
          count: how many.
        """
        return self._traced.stages(count)

    def crossing(self) -> list[int]:
        """Bytes that cross behind each layer, of an example."""
        return self._traced.crossing


def profiled(program: LossProgram, batch: Any, optimizer: Any) -> ModelProfile:
    """Profiles a model; neither its weights nor its batch need have values.

    Args:
      program: its loss.
      batch: (x, y, sample_weight) of arrays, tensors or specs; their first axes are the batch.
      optimizer: its optimizer, whose slots are made.

    Raises:
      ValueError: for a batch without examples, and a model that takes elements of iterators or calls Python.
    """
    leaves = [v for v in nest.flatten(batch) if v is not None]
    unknown = [tuple(v.shape) for v in leaves if None in tuple(v.shape)]
    if unknown:
        raise InvalidValueError(
            f"plan: a step's inputs and targets must have known sizes, got the shapes {unknown}. Give the number of "
            "examples of a step on all devices, and the lengths that they are padded to."
        )
    sizes = {int(v.shape[0]) for v in leaves if len(v.shape)}
    if len(sizes) != 1:
        raise InvalidValueError(
            f"plan: all inputs and targets must have the same number of examples first, got the shapes "
            f"{[tuple(v.shape) for v in leaves]}."
        )
    layers, traced = _traced_loss(program, batch)
    variables = list(program.variables)
    optimizer.build(variables)
    numbers = {id(v): i for i, v in enumerate(variables)}
    slots = [0] * len(variables)
    other = 0
    for slot in {id(v): v for v in optimizer.variables}.values():
        owner = _owner(optimizer, slot, numbers)
        if owner is None:
            other += _bytes(slot)
        else:
            slots[owner] += _bytes(slot)
    names = _axis_names(program.model)
    weights = tuple(
        Weight(v.name, tuple(v.shape), _bytes(v), s, names.get(id(v)))
        for v, s in zip(variables, slots, strict=True)
    )
    other += sum(_bytes(v) for v in program.model.variables if id(v) not in numbers)
    trained = [i for i, c in enumerate(traced.captures) if id(c) in numbers]
    units = max(len(layers.names), 1)
    cut = Program(traced, layers.units(traced), units, trained, range(traced.count))
    of_capture = {i: numbers[id(traced.captures[i])] for i in trained}
    uses = tuple(tuple(sorted({of_capture[i] for i, _ in unit})) for unit in cut.weights())
    (rows,) = sizes
    shapes = [tuple(v.shape) for v in leaves]
    outputs = traced.closed.out_avals[1 : traced.count]
    return ModelProfile(
        str(program.model.name),
        tuple(layers.names) or (str(program.model.name),),
        weights,
        uses,
        other,
        sum(_bytes(v) // rows for v in leaves),
        rows,
        max((s[1] for s in shapes if len(s) > 1), default=0),
        sum(size_of(a) for a in outputs) // ROWS,
        attention_of(traced, of_capture, weights, ROWS),
        experts_of(traced, program.model, ROWS),
        products_of(traced, of_capture, ROWS),
        _Tracing(traced, cut, of_capture),
    )


def _bytes(value: Any) -> int:
    dtype = getattr(value.dtype, "dtype", value.dtype)
    return int(np.prod(tuple(value.shape), dtype=np.int64)) * np.dtype(dtype).itemsize


def _owner(optimizer: Any, slot: Variable, numbers: dict[int, int]) -> int | None:
    """The number of the weight that a slot goes with and is laid out like."""
    inner = getattr(optimizer, "_optimizer", optimizer)
    for key, slots in getattr(inner, "_slots", {}).items():
        if any(s is slot for s in slots.values()):
            owner = inner._owners[key]
            return numbers.get(id(owner)) if owner.shape == slot.shape else None
    return None


def _axis_names(model: Any) -> dict[int, tuple[tuple[str, ...], ...]]:
    """For each weight of a model the names of its axes, by identity."""
    found = {}
    for layer in model._flatten_layers():
        for weight, dims in layer._named_axes():
            found[id(weight)] = tuple(tuple(names) for names in dims)
    return found


def _traced_loss(program: LossProgram, batch: Any) -> tuple[Layers, Traced]:
    """The calls of layers, and the traced loss of a few examples."""
    strategy = types.SimpleNamespace(options=ParallelOptions())
    shares = Shares(strategy, (), (), 1)
    leaves = [v for v in nest.flatten(batch) if v is not None]
    specs = [TensorSpec((ROWS, *v.shape[1:]) if len(v.shape) else v.shape, v.dtype) for v in leaves]

    def run(*rows: Any) -> Any:
        supply = iter(rows)
        given = nest.map_structure(lambda v: None if v is None else next(supply), batch)
        with in_shares(shares):
            loss, _, (predictions, _) = program.run(*given)
        return loss, predictions

    if not getattr(program.model, "built", True):
        trace(run, tuple(specs), name="planned", isolated=True)
        shares.totals.clear()
    layers = Layers()
    with layers.noted():
        traced = trace(run, tuple(specs), name="planned", isolated=True)
    if traced.closed.effects or traced.iterator_captures or traced.infeeds:
        raise InvalidValueError(
            f"plan: {program.model.name} calls Python or takes elements of iterators while it runs; what it computes "
            "cannot be read from its program."
        )
    return layers, traced


class _Tracing:
    """A traced loss, and what it keeps for its gradient.

    Args:
      traced: the loss of `ROWS` examples.
      cut: the same, by layers.
      weights: the numbers of the weights among the captures.
    """

    def __init__(self, traced: Traced, cut: Program, weights: dict[int, int]) -> None:
        self.traced, self.cut, self.weights = traced, cut, weights
        self.costs = [c / ROWS for c in cut.costs()]
        self.crossing = [int(n) // ROWS for n in cut.crossing()]
        self._known: dict[Any, Split] = {}
        self._stages: dict[int, list[int]] = {}

    def stages(self, count: int) -> list[int]:
        if count not in self._stages:
            self._stages[count] = balanced(self.cut, count)
        return self._stages[count]

    @functools.cached_property
    def _residuals(self) -> tuple[Any, list[Any], dict[Any, int]]:
        """The program of the forward pass, what it keeps, and the layer of each value."""
        run = jex_core.jaxpr_as_fun(self.traced.closed)
        avals = self.traced.closed.in_avals
        offset = len(avals) - len(self.traced.captures)
        trained = [offset + i for i in self.weights]

        def kept(*operands: Any) -> Any:
            def loss(*values: Any) -> Any:
                full = list(operands)
                for i, value in zip(trained, values, strict=True):
                    full[i] = value
                return run(*full)[0]

            return jax.vjp(loss, *[operands[i] for i in trained])[1]

        closed = jax.make_jaxpr(kept)(*[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals])
        jaxpr = closed.jaxpr
        inputs = set(jaxpr.invars) | set(jaxpr.constvars)
        unit, unit_of = 0, {}
        for eqn in jaxpr.eqns:
            label = re.search(rf"{LABEL}(\d+)", str(eqn.source_info.name_stack))
            unit = int(label[1]) if label else unit
            for v in eqn.outvars:
                unit_of[v] = unit
        outputs = {v for v in jaxpr.outvars if not isinstance(v, jex_core.Literal)} - inputs
        return jaxpr, list(outputs), unit_of

    def split(self, weights: Sequence[Weight], names: tuple[str, ...], parts: int) -> Split:
        key = names, parts
        if key not in self._known:
            self._known[key] = self._split(weights, names, parts)
        return self._known[key]

    def _split(self, weights: Sequence[Weight], names: tuple[str, ...], parts: int) -> Split:
        jaxpr, kept, unit_of = self._residuals
        offset = len(jaxpr.invars) - len(self.traced.captures)
        inputs = {jaxpr.invars[offset + i]: n for i, n in self.weights.items()}
        axes = {v: axis for v, n in inputs.items() if (axis := weights[n].named(names)) is not None}
        found = splits_of(jaxpr, axes, set(inputs)) if axes else Splits({})
        units = self.cut.units
        sizes, shared = [0] * units, [0] * units
        for v in kept:
            size, unit = size_of(v.aval) // ROWS, unit_of[v]
            sizes[unit] += size // parts if v in found.axes else size
            shared[unit] += size if v in found.whole else size // parts
        # The last sum of a layer is what it gives, which its own gradient does not need.
        last = {unit_of[v]: size for v, size in found.forward}

        def of_layer(unit: int) -> LayerSums:
            def of(sums: Any) -> int:
                return sum(size for v, size in sums if unit_of[v] == unit) // ROWS

            counted = of(found.backward), of(found.each)
            return LayerSums(of(found.forward), last.get(unit, 0) // ROWS, *counted)

        # Products are nearly all of the arithmetic; those that are split are divided evenly.
        whole = sum(self.costs)
        share = min(found.divided / ROWS / whole, 1.0) if whole else 0.0
        factor = 1 - share + share / parts
        return Split(
            tuple(c * factor for c in self.costs),
            tuple(sizes),
            tuple(shared),
            self._edges,
            tuple(of_layer(u) for u in range(units)),
        )

    def in_parts_of_sequences(self, length: int, parts: int) -> Split:
        key = "sequence", parts
        if key not in self._known:
            _, kept, unit_of = self._residuals
            sizes = [0] * self.cut.units
            for v in kept:
                # Scores, of queries and keys, are not kept but computed again by block.
                if v.aval.shape.count(length) < 2:
                    sizes[unit_of[v]] += size_of(v.aval) // ROWS // parts
            edges = tuple(n // parts for n in self._edges)
            work = tuple(c / parts for c in self.costs)
            nothing = (LayerSums(),) * self.cut.units
            self._known[key] = Split(work, tuple(sizes), tuple(sizes), edges, nothing)
        return self._known[key]

    @functools.cached_property
    def _edges(self) -> tuple[int, ...]:
        """Bytes that each layer makes for others."""
        sizes = [0] * self.cut.units
        at, made = self.cut.unit_of, {}
        for n, eqn in enumerate(self.cut.eqns):
            for v in eqn.outvars:
                made[v] = at[n]
        counted = set()
        for n, eqn in enumerate(self.cut.eqns):
            for v in eqn.invars:
                if isinstance(v, jex_core.Literal) or v not in made or v in counted:
                    continue
                if made[v] != at[n]:
                    counted.add(v)
                    sizes[made[v]] += size_of(v.aval) // ROWS
        return tuple(sizes)
