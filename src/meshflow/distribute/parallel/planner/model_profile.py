"""Profile of a model for the planner: its weights, and the arithmetic and residuals of each layer.

The profile is read from the trace of a step for a few examples. It depends only on shapes, so the
weights need no values.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
import types
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.tracing.trace import TracedFunction, trace
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.options import ParallelOptions
from meshflow.distribute.parallel.planner.layer_traffic import (
    AttentionTraffic,
    ExpertLayer,
    WeightProduct,
    WeightReads,
    count_reads,
    find_attention,
    find_expert_layers,
    find_products,
)
from meshflow.distribute.parallel.planner.splits import PropagatedSplits, propagate_splits
from meshflow.distribute.parallel.program import LossProgram
from meshflow.distribute.parallel.stage_programs import (
    FORM_PRIMITIVES,
    PipelineProgram,
    count_bytes,
)
from meshflow.distribute.parallel.stages import CALL_SCOPE_PREFIX, LayerCallRecorder, balance_stages
from meshflow.distribute.parallel.zero import find_free_axis, select_live_weights
from meshflow.distribute.replicas.shares import BatchShares, shares_scope
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Jaxpr, JaxprEqn, PyTree, Var
from meshflow.passes.jaxprs import select_variables

# Between two layers a result and its gradient are live and, if several operations read the result, as with a residual
# connection, the summand and its gradient.
_COPIES, _SUMMED_COPIES = 2, 4
_LINEAR_PRIMITIVES = FORM_PRIMITIVES | {"add", "add_any", "sub", "neg", "reduce_sum", "copy"}
# These are linear if one operand has a gradient.
_BILINEAR_PRIMITIVES = frozenset(["mul", "div", "select_n", "dot_general", "scatter-add"])
_COMPARISONS = frozenset(["eq", "ge", "gt", "le", "lt", "ne"])
# XLA fuses these into each operation that reads them, so that their results need no memory. It computes others, such as
# divisions and exponentials, only once.
_FUSED_PRIMITIVES = _COMPARISONS | frozenset(
    [
        "abs",
        "add",
        "add_any",
        "broadcast_in_dim",
        "convert_element_type",
        "copy",
        "expand_dims",
        "integer_pow",
        "iota",
        "max",
        "min",
        "mul",
        "neg",
        "not",
        "reshape",
        "select_n",
        "sign",
        "square",
        "squeeze",
        "stop_gradient",
        "sub",
    ]
)
# These fuse the operations that compute their operands.
_REDUCTIONS = frozenset(["reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_sum"])
# Number of traced examples. With two, axes of examples differ from axes of size one.
TRACED_ROWS = 2


@dataclasses.dataclass(frozen=True)
class WeightProfile:
    """A trained weight.

    Attributes:
      name: Its name.
      shape: Its shape.
      bytes: Its size.
      slots: Bytes of the optimizer's slots of the same shape.
      dims: Names of each axis that rules may refer to; None if the axes have no names.
    """

    name: str
    shape: tuple[int, ...]
    bytes: int
    slots: int
    dims: tuple[tuple[str, ...], ...] | None

    def find_named_axis(self, names: Sequence[str]) -> int | None:
        """Return the axis that rules for some names split, or None.

        Args:
          names: The names.

        Returns:
          Index of the axis.
        """
        axes = [i for i, axis_names in enumerate(self.dims or ()) if set(axis_names) & set(names)]
        return axes[0] if axes else None

    def find_free_axis(self, parts: int, taken: Sequence[int | None] = ()) -> int | None:
        """Return the axis that ZeRO and pipelines split over devices, or None.

        Args:
          parts: Number of devices.
          taken: Axes that are split already.

        Returns:
          Index of the axis.
        """
        return find_free_axis(self.shape, parts, taken)


class LayerSums(NamedTuple):
    """Bytes of an example that devices sum in a layer with split products.

    Attributes:
      forward: Sums in the forward pass.
      last: The last of these sums, which produces the layer's result.
      backward: Sums in the backward pass.
      each: The same if gradients of one value by several products are not added first.
    """

    forward: int = 0
    last: int = 0
    backward: int = 0
    each: int = 0

    @property
    def recomputed(self) -> int:
        """Return the sums that recomputation of the layer repeats: all but that of its result."""
        return self.forward - self.last


@dataclasses.dataclass(frozen=True)
class SplitProfile:
    """Costs of a model's layers if rules split its weights over devices.

    Attributes:
      work: Multiplications and additions of each layer's forward pass on one device, for an
        example.
      kept: Bytes of residuals that each layer keeps on one device, for an example.
      shared: The same if sequences are split between products, too.
      edges: Bytes of values that each layer passes to other layers, for an example.
      ends: Bytes of these values and their gradients at the end of each layer, for an example.
      sums: Sums over devices in each layer.
    """

    work: tuple[float, ...]
    kept: tuple[int, ...]
    shared: tuple[int, ...]
    edges: tuple[int, ...]
    ends: tuple[int, ...]
    sums: tuple[LayerSums, ...]

    @property
    def total(self) -> LayerSums:
        """Return the sums of all layers."""
        return LayerSums(*map(sum, zip(*self.sums, strict=True)))


@dataclasses.dataclass(frozen=True, eq=False)
class ModelProfile:
    """Profile of a model.

    Attributes:
      name: Name of the model.
      layers: Names of its layers in the order of execution.
      weights: Its trained weights.
      uses: Indices of the weights that each layer uses.
      reads: Operations that combine each weight with examples.
      frozen: Bytes of the frozen weights that each layer uses, by index.
      other: Bytes of all variables that are not split: statistics, metrics, counters.
      example: Bytes of one example of a batch, including targets.
      batch: Number of examples of a step.
      sequence: Length of its sequences, 0 if it has none.
      results: Bytes of the predictions for one example.
      attention: Sizes of its attention layers, None if it has none.
      experts: Its layers of experts.
      products: Its products with weights.
      own_step: Whether its `train_step` computes gradients itself, of a loss that only micro-batches may split.
      step_loops: Number of loops over micro-batches of such a step, each of which gathers the weights that `zero=3`
        shards; 0 if micro-batches cannot compute it.
      precision: Name of the policy that its layers were given for this profile, or None.
      computes_bfloat16: Whether layers compute with bfloat16 values.
      batch_normalization: Name of a layer that normalizes rows by statistics of the batch, or None.
    """

    name: str
    layers: tuple[str, ...]
    weights: tuple[WeightProfile, ...]
    uses: tuple[tuple[int, ...], ...]
    reads: tuple[WeightReads, ...]
    frozen: tuple[Mapping[int, int], ...]
    other: int
    example: int
    batch: int
    sequence: int
    results: int
    attention: AttentionTraffic | None
    experts: tuple[ExpertLayer, ...]
    products: tuple[WeightProduct, ...]
    _traced: _TracedLoss
    own_step: bool = False
    step_loops: int = 0
    precision: str | None = None
    computes_bfloat16: bool = False
    batch_normalization: str | None = None

    @property
    def parameters(self) -> int:
        """Return the number of trained parameters."""
        return sum(int(np.prod(w.shape)) for w in self.weights)

    @property
    def bytes(self) -> int:
        """Return the bytes of the trained weights."""
        return sum(w.bytes for w in self.weights)

    @property
    def work(self) -> float:
        """Return the multiplications and additions of an example's forward pass."""
        return sum(self.split_weights((), 1).work)

    @functools.cached_property
    def layer_counts(self) -> Counter[int]:
        """Return the number of layers that use each weight, at least 1, by index."""
        counts = Counter(itertools.chain.from_iterable(self.uses))
        return counts | Counter(range(len(self.weights)))

    def find_named_axes(self, names: tuple[str, ...]) -> tuple[int | None, ...]:
        """Return for each weight the axis that rules for some names split, or None.

        Args:
          names: The names.

        Returns:
          The axes, in the order of the weights.
        """
        if names not in self._axes:
            self._axes[names] = tuple(w.find_named_axis(names) for w in self.weights)
        return self._axes[names]

    def list_regathered(self, recompute: str | None, budget: int | None) -> list[tuple[bool, bool]]:
        """Return for each weight whether ZeRO 3 releases it, and whether it gathers it again.

        Tables and the first products of a model are not needed for gradients. Weights that are
        released are gathered for each micro-batch.

        Args:
          recompute: The option `recompute`.
          budget: The option `max_live_parameters`.

        Returns:
          A pair for each weight.
        """
        live = select_live_weights([math.prod(w.shape) for w in self.weights], budget)
        used = {p.weight: False for p in self.products}
        for p in self.products:
            used[p.weight] |= p.has_input_gradient or recompute == "layer"
        tables = self.find_named_axes(("vocab",))
        return [
            (n not in live, n not in live and used.get(n, tables[n] != 0))
            for n in range(len(self.weights))
        ]

    @functools.cached_property
    def _axes(self) -> dict[tuple[str, ...], tuple[int | None, ...]]:
        return {}

    def split_weights(self, names: tuple[str, ...], parts: int) -> SplitProfile:
        """Return the costs of the layers if the axes with some names are split.

        Args:
          names: The names.
          parts: Number of devices to split over.

        Returns:
          The costs.
        """
        return self._traced.split(self.weights, names if parts > 1 else (), parts)

    def split_sequences(self, parts: int) -> SplitProfile:
        """Return the costs of the layers if each device has a part of all sequences.

        Args:
          parts: Number of devices to split over.

        Returns:
          The costs.
        """
        return self._traced.in_parts_of_sequences(self.sequence, parts)

    def find_stage_ends(self, count: int) -> list[int]:
        """Return the ends of pipeline stages for a model without marked stages.

        Args:
          count: Number of stages.

        Returns:
          For each stage the index after its last layer.
        """
        return self._traced.stages(count)

    def count_crossing_bytes(self) -> list[int]:
        """Return the bytes of an example that cross the boundary after each layer."""
        return self._traced.crossing


def profile_model(program: LossProgram, batch: PyTree, optimizer: Any) -> ModelProfile:
    """Profile a model; neither its weights nor its batch need values.

    Args:
      program: Loss of the model.
      batch: (x, y, sample_weight) of arrays, tensors or specs; their first axes are the batch.
      optimizer: Optimizer of the model; its slots are created.

    Returns:
      The profile.

    Raises:
      ValueError: If the batch has no examples or unknown sizes, or if the model takes elements of
        iterators or calls Python.
    """
    leaves = [v for v in nest.flatten(batch) if v is not None]
    unknown = [tuple(v.shape) for v in leaves if None in tuple(v.shape)]
    if unknown:
        raise InvalidValueError(
            f"plan: a step's inputs and targets must have known sizes, got the shapes {unknown}. Pass the number of "
            "examples of a step on all devices, and the padded lengths of sequences."
        )
    sizes = {int(v.shape[0]) for v in leaves if len(v.shape)}
    if len(sizes) != 1:
        raise InvalidValueError(
            f"plan: all inputs and targets must have the same number of examples first, got the shapes "
            f"{[tuple(v.shape) for v in leaves]}."
        )
    layers, traced, batch_normalization = _trace_loss(program, batch)
    variables = list(program.variables)
    optimizer.build(variables)
    indices = {id(v): i for i, v in enumerate(variables)}
    slots = [0] * len(variables)
    other = 0
    for slot in {id(v): v for v in optimizer.variables}.values():
        owner = _find_owner(optimizer, slot, indices)
        if owner is None:
            other += _count_bytes(slot)
        else:
            slots[owner] += _count_bytes(slot)
    names = _collect_axis_names(program.model)
    weights = tuple(
        WeightProfile(
            v.name,
            tuple(v.shape),
            _count_bytes(v),
            s,
            names.get(id(v)),
        )
        for v, s in zip(variables, slots, strict=True)
    )
    other += sum(_count_bytes(v) for v in program.model.variables if id(v) not in indices)
    trained = [i for i, c in enumerate(traced.captures) if id(c) in indices]
    units = max(len(layers.names), 1)
    find_weights = functools.partial(
        PipelineProgram, traced, layers.find_units(traced), units, wanted=range(traced.num_results)
    )
    cut = find_weights(trained)
    frozen = find_weights(_find_frozen(traced, program.model, indices)).list_weights()
    weight_indices = {i: indices[id(traced.captures[i])] for i in trained}
    uses = tuple(tuple(sorted({weight_indices[i] for i, _ in unit})) for unit in cut.list_weights())
    (rows,) = sizes
    shapes = [tuple(v.shape) for v in leaves]
    outputs = traced.closed_jaxpr.out_avals[1 : traced.num_results]
    return ModelProfile(
        str(program.model.name),
        tuple(layers.names) or (str(program.model.name),),
        weights,
        uses,
        count_reads(traced, weight_indices, TRACED_ROWS),
        tuple(map(dict, frozen)),
        other,
        sum(_count_bytes(v) // rows for v in leaves),
        rows,
        max((s[1] for s in shapes if len(s) > 1), default=0),
        sum(count_bytes(a) for a in outputs) // TRACED_ROWS,
        find_attention(traced, weight_indices, weights, TRACED_ROWS),
        find_expert_layers(traced, weight_indices, program.model, TRACED_ROWS),
        find_products(traced, weight_indices, TRACED_ROWS),
        _TracedLoss(traced, cut, weight_indices),
        batch_normalization=batch_normalization,
    )


def _find_frozen(traced: TracedFunction, model: Any, trained: Collection[int]) -> list[int]:
    """Return the indices of captured weights that a step reads but never writes."""
    weights = {id(v) for v in model.weights} - {*trained} - {id(v) for v in traced.writes}
    return [i for i, c in enumerate(traced.captures) if id(c) in weights and c.dtype.is_floating]


def _count_bytes(value: Any) -> int:
    dtype = getattr(value.dtype, "dtype", value.dtype)
    return int(np.prod(tuple(value.shape), dtype=np.int64)) * np.dtype(dtype).itemsize


def _find_owner(optimizer: Any, slot: Variable, indices: dict[int, int]) -> int | None:
    """Return the index of the weight that a slot belongs to if both have the same shape."""
    inner = getattr(optimizer, "_optimizer", optimizer)
    for key, slots in getattr(inner, "_slots", {}).items():
        if any(s is slot for s in slots.values()):
            owner = inner._owners[key]
            return indices.get(id(owner)) if owner.shape == slot.shape else None
    return None


def _collect_axis_names(model: Any) -> dict[int, tuple[tuple[str, ...], ...]]:
    """Return the names of the axes of each weight, by id of the weight."""
    names_by_weight = {}
    for layer in (model, *model.submodules):
        for weight, dims in layer._list_named_axes():
            names_by_weight[id(weight)] = tuple(tuple(names) for names in dims)
    return names_by_weight


def _trace_loss(
    program: LossProgram, batch: PyTree
) -> tuple[LayerCallRecorder, TracedFunction, str | None]:
    """Trace the loss of a few examples, record the calls of layers, and find a batch normalization."""
    strategy = types.SimpleNamespace(options=ParallelOptions())
    shares = BatchShares(strategy, (), (), 1)
    leaves = [v for v in nest.flatten(batch) if v is not None]
    specs = [
        TensorSpec((TRACED_ROWS, *v.shape[1:]) if len(v.shape) else v.shape, v.dtype)
        for v in leaves
    ]

    def run(*rows: Any) -> tuple[Any, PyTree]:
        supply = iter(rows)
        operands = nest.map_structure(lambda v: None if v is None else next(supply), batch)
        with shares_scope(shares):
            loss, _, (predictions, _) = program.run(*operands)
        return loss, predictions

    if not getattr(program.model, "built", True):
        trace(run, tuple(specs), name="planned", isolated=True)
        shares.totals.clear()
    layers = LayerCallRecorder()
    with layers.record_calls():
        traced = trace(run, tuple(specs), name="planned", isolated=True)
    if traced.closed_jaxpr.effects or traced.iterator_captures or traced.infeeds:
        raise InvalidValueError(
            f"plan: {program.model.name} calls Python or takes elements of iterators while it runs, so its program does "
            "not contain all of its computation."
        )
    return layers, traced, shares.batch_normalization


def _find_layer_call(eqn: JaxprEqn) -> int | None:
    """Return the index of the layer call that an equation belongs to, or None outside of layers."""
    label = re.search(rf"{CALL_SCOPE_PREFIX}(\d+)", str(eqn.source_info.name_stack))
    return int(label[1]) if label else None


def _select_stored(
    jaxpr: Jaxpr, residuals: Collection[Var], compared: Collection[Var], available: Collection[Var]
) -> list[Var]:
    """Return the residuals that XLA stores instead of computing them again in each operation that reads them.

    A batch normalization, for example, stores neither its centered nor its normalized input, because both follow from the
    result of the layer before it and from statistics. XLA stores a function of several residuals, unless it is only compared,
    and statistics of each token that are broadcast to the shape of the tokens.

    Args:
      jaxpr: The forward pass.
      residuals: Values that the backward pass needs.
      compared: Those that it only compares.
      available: Values that are held in any case.
    """
    readers: dict[Var, list[JaxprEqn]] = {}
    for eqn in jaxpr.eqns:
        for v in select_variables(eqn.invars):
            readers.setdefault(v, []).append(eqn)
    fused = {v: eqn for eqn in jaxpr.eqns if _is_fused(eqn) for v in eqn.outvars}
    values = {*jaxpr.invars, *jaxpr.constvars}.union(*(eqn.outvars for eqn in jaxpr.eqns))
    shapes: dict[Var, tuple[int, ...]] = {v: getattr(v.aval, "shape", ()) for v in values}

    @functools.cache
    def is_stored(v: Var) -> bool:
        return v in residuals and not (
            all(_is_fused(e) or e.primitive.name in _REDUCTIONS for e in readers.get(v, ()))
            and follows(v, v in compared)
        )

    @functools.cache
    def follows(v: Var, from_several: bool) -> bool:
        """Return whether a fused operation computes a value from others that are held."""
        if v not in fused:
            return False
        reads = [r for r in select_variables(fused[v].invars) if r not in available]
        examples = [r for r in reads if shapes[r][:1] == shapes[v][:1]]
        return (len(examples) < 2 or from_several) and all(
            math.prod(shapes[r]) == math.prod(shapes[v])
            and (is_stored(r) or follows(r, from_several))
            if r in examples
            else math.prod(shapes[r]) * TRACED_ROWS <= math.prod(shapes[v])
            for r in reads
        )

    return [v for v in residuals if is_stored(v)]


def _is_fused(eqn: JaxprEqn) -> bool:
    """Check whether XLA fuses an equation into the equations that read its results."""
    body = eqn.params.get("call_jaxpr") or eqn.params.get("jaxpr")
    if eqn.primitive.name in ("custom_jvp_call", "jit", "pjit") and body is not None:
        return all(map(_is_fused, body.eqns))
    return eqn.primitive.name in _FUSED_PRIMITIVES


def _find_needed(
    sums: Sequence[Var], jaxpr: Jaxpr, unit_of: Mapping[Any, int], dependent: Collection[Any]
) -> set[Var]:
    """Return the sums that gradients inside of their layer need.

    A normalization of a sum and a product of it with a value that has a gradient need the sum. Additions, changes of the
    shape, and products with constants do not.
    """
    sources: dict[Any, Var] = {v: v for v in sums}
    needed = set[Var]()
    for eqn in jaxpr.eqns:
        read = [v for v in select_variables(eqn.invars) if v in sources]
        call = _find_layer_call(eqn) if read else None
        for v in read:
            if call != unit_of[sources[v]]:
                continue
            factors = [other for other in select_variables(eqn.invars) if other in dependent]
            is_linear = eqn.primitive.name in _LINEAR_PRIMITIVES
            if is_linear or (eqn.primitive.name in _BILINEAR_PRIMITIVES and len(factors) == 1):
                sources[eqn.outvars[0]] = sources[v]
            else:
                needed.add(sources[v])
    return needed


class _TracedLoss:
    """A traced loss, with analyses of its gradient.

    Args:
      traced: Trace of the loss of `TRACED_ROWS` examples.
      cut: The same loss, divided into layers.
      weights: Indices of the weights, by index of the capture.
    """

    def __init__(
        self, traced: TracedFunction, cut: PipelineProgram, weights: dict[int, int]
    ) -> None:
        self.traced, self.cut, self.weights = traced, cut, weights
        self.costs = [c / TRACED_ROWS for c in cut.count_operations()]
        self.crossing = [int(n) // TRACED_ROWS for n in cut.count_crossing_bytes()]
        self._splits: dict[Any, SplitProfile] = {}
        self._stage_ends: dict[int, list[int]] = {}

    def stages(self, count: int) -> list[int]:
        if count not in self._stage_ends:
            self._stage_ends[count] = balance_stages(self.cut, count)
        return self._stage_ends[count]

    @functools.cached_property
    def _residuals(self) -> tuple[Jaxpr, list[Any], dict[Any, int]]:
        """Return the program of the forward pass, its residuals, and the layer of each value."""
        run = jex_core.jaxpr_as_fun(self.traced.closed_jaxpr)
        avals = self.traced.closed_jaxpr.in_avals
        offset = len(avals) - len(self.traced.captures)
        trained = [offset + i for i in self.weights]

        def run_forward(*operands: PyTree) -> PyTree:
            def loss(*weights: jax.Array) -> jax.Array:
                values = list(operands)
                for i, value in zip(trained, weights, strict=True):
                    values[i] = value
                return run(*values)[0]

            return jax.vjp(loss, *[operands[i] for i in trained])[1]

        structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
        closed = jax.make_jaxpr(run_forward)(*structs)
        jaxpr = closed.jaxpr
        inputs = set(jaxpr.invars) | set(jaxpr.constvars)
        weights = {jaxpr.invars[i] for i in trained}
        unit, unit_of = 0, {}
        operands: dict[Any, list[Any]] = {}
        constants: list[Any] = []
        for eqn in jaxpr.eqns:
            read = select_variables(eqn.invars)
            if eqn.primitive.name in _COMPARISONS:
                operands[eqn.outvars[0]] = read
            elif not read:
                constants += eqn.outvars
            if read and weights.issuperset(read):
                # Copies of weights, such as those that products take under a policy of mixed precision, do not grow with
                # the batch.
                weights.update(eqn.outvars)
            call = _find_layer_call(eqn)
            unit = unit if call is None else call
            for v in eqn.outvars:
                unit_of[v] = unit
        # XLA compares values again where the result chooses between a gradient and a constant.
        shapes = {v.aval.shape for v in select_variables(jaxpr.outvars) if v in operands}
        operands |= {v: [] for v in constants if v.aval.shape in shapes}
        results = select_variables(jaxpr.outvars)
        compared = {v for read in results for v in operands.get(read, ())}.difference(results)
        outputs = [v for read in results for v in operands.get(read, [read])]
        residuals = dict.fromkeys(v for v in outputs if v not in inputs | weights)
        return jaxpr, _select_stored(jaxpr, residuals, compared, inputs | weights), unit_of

    def split(
        self, weights: Sequence[WeightProfile], names: tuple[str, ...], parts: int
    ) -> SplitProfile:
        key = names, parts
        if key not in self._splits:
            self._splits[key] = self._compute_split(weights, names, parts)
        return self._splits[key]

    def _compute_split(
        self, weights: Sequence[WeightProfile], names: tuple[str, ...], parts: int
    ) -> SplitProfile:
        jaxpr, residuals, unit_of = self._residuals
        offset = len(jaxpr.invars) - len(self.traced.captures)
        inputs = {jaxpr.invars[offset + i]: n for i, n in self.weights.items()}
        axes = {
            v: axis
            for v, n in inputs.items()
            if (axis := weights[n].find_named_axis(names)) is not None
        }
        dependent: set[Any] = set(inputs)
        splits = propagate_splits(jaxpr, axes, dependent) if axes else PropagatedSplits({})
        units = self.cut.units
        sizes, shared = [0] * units, [0] * units
        for v in residuals:
            size, unit = count_bytes(v.aval) // TRACED_ROWS, unit_of[v]
            sizes[unit] += size // parts if v in splits.axes else size
            shared[unit] += size if v in splits.unsplit_inputs else size // parts
        # The last sum of a layer usually produces its result, which its own gradient does not need.
        last = {unit_of[v]: (v, size) for v, size in splits.forward}
        needed = _find_needed([v for v, _ in last.values()], jaxpr, unit_of, dependent)
        last_sizes = {u: size for u, (v, size) in last.items() if v not in needed}

        def get_layer_sums(unit: int) -> LayerSums:
            def count(sums: list[tuple[Any, int]]) -> int:
                return sum(size for v, size in sums if unit_of[v] == unit) // TRACED_ROWS

            counted = count(splits.backward), count(splits.each)
            return LayerSums(
                count(splits.forward), last_sizes.get(unit, 0) // TRACED_ROWS, *counted
            )

        # Products are nearly all of the arithmetic, and split products are split evenly.
        total = sum(self.costs)
        share = min(splits.divided / TRACED_ROWS / total, 1.0) if total else 0.0
        factor = 1 - share + share / parts
        return SplitProfile(
            tuple(c * factor for c in self.costs),
            tuple(sizes),
            tuple(shared),
            *self._compute_edges(weights, names, parts),
            tuple(get_layer_sums(u) for u in range(units)),
        )

    def in_parts_of_sequences(self, length: int, parts: int) -> SplitProfile:
        key = "sequence", parts
        if key not in self._splits:
            _, residuals, unit_of = self._residuals
            sizes = [0] * self.cut.units
            for v in residuals:
                # Scores, which have axes of queries and of keys, are not kept but recomputed block
                # by block.
                if v.aval.shape.count(length) < 2:
                    sizes[unit_of[v]] += count_bytes(v.aval) // TRACED_ROWS // parts
            edges, ends = (tuple(n // parts for n in v) for v in self._compute_edges((), (), 1))
            work = tuple(c / parts for c in self.costs)
            no_sums = (LayerSums(),) * self.cut.units
            self._splits[key] = SplitProfile(work, tuple(sizes), tuple(sizes), edges, ends, no_sums)
        return self._splits[key]

    def _compute_edges(
        self, weights: Sequence[WeightProfile], names: tuple[str, ...], parts: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return `edges` and `ends` of the `SplitProfile`, if the axes with some names are split."""
        axes = {
            self.cut.captured[i]: axis
            for i, n in self.weights.items()
            if names and (axis := weights[n].find_named_axis(names)) is not None
        }
        jaxpr = self.traced.closed_jaxpr.jaxpr
        split_axes = propagate_splits(jaxpr, axes).axes if axes else {}
        sizes, ends = [0] * self.cut.units, [0] * self.cut.units
        units = self.cut.equation_units
        producers = {v: units[n] for n, eqn in enumerate(self.cut.eqns) for v in eqn.outvars}
        readers: dict[Any, list[int]] = {}
        for n, eqn in enumerate(self.cut.eqns):
            for v in select_variables(eqn.invars):
                if v in producers:
                    readers.setdefault(v, []).append(units[n])
        for v, reading in readers.items():
            unit = producers[v]
            if {*reading} - {unit}:
                size = count_bytes(v.aval) // TRACED_ROWS
                size = size // parts if v in split_axes else size
                sizes[unit] += size
                ends[unit] += (_SUMMED_COPIES if len(reading) > 1 else _COPIES) * size
        return tuple(sizes), tuple(ends)
