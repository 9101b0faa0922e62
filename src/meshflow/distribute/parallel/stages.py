"""Assignment of a model's layers to pipeline stages."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.tracing.trace import TracedFunction
from meshflow.distribute.parallel.stage_programs import PipelineProgram, StageProgram, cut_stages

# Typical rates of a CPU core, per second: operations, bytes of memory traffic, bytes between
# devices. Only their ratios matter for balancing. They were chosen when the balancing was written;
# no measurement was recorded.
_OPERATIONS_PER_SECOND, _MEMORY, _LINK = 50e9, 10e9, 5e9
# A backward pass costs twice a forward pass: it computes the gradients of inputs and of weights.
_COMPUTE_PASSES = 3
# Weights are read in the forward pass, in the recomputation and in the backward pass, and their gradients are written. This
# is a derivation, not a measurement.
_WEIGHT_PASSES = 4
CALL_SCOPE_PREFIX = "call-of-layer-"


class LayerCallRecorder:
    """Recorder of layer calls while a function is traced; it records the layers inside of models.

    Attributes:
      names: Names of the called layers.
      stage_starts: Indices of the calls that start a stage, as marked by `tf.keras.layers.Stage()`.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.stage_starts: list[int] = []
        self._inside = False

    @contextlib.contextmanager
    def __call__(self, layer: Any, whole: bool = False) -> Iterator[None]:
        """Open the scope in which a layer computes.

        Args:
          layer: The layer.
          whole: Whether to record a model as one layer, too.
        """
        if self._inside or (hasattr(layer, "_get_graph") and not whole):
            yield
            return
        index = len(self.names)
        self.names.append(layer.name)
        if getattr(layer, "begins_stage", False):
            self.stage_starts.append(index)
        self._inside = True
        try:
            with jax.named_scope(f"{CALL_SCOPE_PREFIX}{index}"):
                yield
        finally:
            self._inside = False

    @contextlib.contextmanager
    def record_calls(self) -> Iterator[None]:
        """Record calls of layers while the context is open."""
        saved, context.label_layer = context.label_layer, self
        try:
            yield
        finally:
            context.label_layer = saved

    def find_units(self, traced: TracedFunction) -> list[int]:
        """Return the call of each equation; an equation between two calls belongs to the first."""
        units = []
        current = 0
        for eqn in traced.closed_jaxpr.jaxpr.eqns:
            label = re.search(rf"{CALL_SCOPE_PREFIX}(\d+)", str(eqn.source_info.name_stack))
            current = max(current, int(label[1])) if label else current
            units.append(current)
        return units


class PipelineStages(NamedTuple):
    """A traced loss in stages.

    Attributes:
      program: Program of one micro-batch.
      programs: Programs of the stages.
      layers: Names of the layers of each stage.
      work: Multiplications and additions of each stage's forward pass.
      weights: Bytes of the trained weights of each stage.
    """

    program: PipelineProgram
    programs: list[StageProgram]
    layers: list[list[str]]
    work: list[float]
    weights: list[int]


def trace_stages(
    tracer: Callable[[], TracedFunction],
    count: int,
    balance: str | Sequence[int] = "auto",
    trained: Callable[[Any], bool] = lambda c: bool(getattr(c, "trainable", False)),
    wanted: Callable[[TracedFunction], Sequence[int]] = lambda traced: range(traced.num_results),
    name: str = "model",
    placed_layers: Sequence[Sequence[str]] = (),
) -> PipelineStages:
    """Trace a function of a micro-batch, and cut it into stages.

    Args:
      tracer: Function that traces it; the traced function calls a model's layers.
      count: Number of stages.
      balance: "auto" cuts at `Stage()` layers if there are any, and otherwise minimizes the
        estimated time of the slowest stage; "cost" always does the latter; a list has the number of
        layers of each stage.
      trained: Predicate for captures that are trained.
      wanted: Function that returns the indices of the results that are needed.
      name: Description of the model for error messages.
      placed_layers: Names of the layers of each stage in the cut by which weights were placed. A
        function that calls the same layers gets the same cut, and its number of stages.

    Returns:
      The stages.

    Raises:
      ValueError: If there are more stages than layers, or if marks or counts do not fit.
    """
    layers = LayerCallRecorder()
    with layers.record_calls():
        traced = tracer()
    # JAX also represents names of mesh dimensions as effects.
    effects = [e for e in traced.closed_jaxpr.effects if type(e).__name__ != "NamedAxisEffect"]
    if effects or traced.iterator_captures or traced.infeeds:
        raise InvalidValueError(
            f"Pipeline: {name} calls Python or takes elements of iterators while it runs, which a stage cannot do."
        )
    trained_indices = [i for i, c in enumerate(traced.captures) if trained(c)]
    units = max(len(layers.names), 1)
    program = PipelineProgram(
        traced, layers.find_units(traced), units, trained_indices, wanted(traced)
    )
    if placed_layers and [*itertools.chain(*placed_layers)] == layers.names:
        count, balance = len(placed_layers), [*map(len, placed_layers)]
    ends = _find_stage_ends(balance, layers, program, count, name)
    costs, weights = program.count_operations(), program.list_weights()
    parts = [range(a, b) for a, b in itertools.pairwise([0, *ends])]
    return PipelineStages(
        program,
        cut_stages(program, ends),
        [[layers.names[u] for u in part if u < len(layers.names)] for part in parts],
        [sum(costs[u] for u in part) for part in parts],
        [sum(dict(item for u in part for item in weights[u]).values()) for part in parts],
    )


def _find_stage_ends(
    balance: str | Sequence[int],
    layers: LayerCallRecorder,
    program: PipelineProgram,
    count: int,
    name: str,
) -> list[int]:
    names = layers.names
    if count > program.units:
        raise InvalidValueError(
            f"Pipeline: {count} stages are more than the {program.units} layers of {name}: {names}. Use a smaller "
            "mesh dimension for stages, or fewer stages on each device."
        )
    if isinstance(balance, str):
        if balance not in ("auto", "cost"):
            raise InvalidValueError(
                f"Pipeline: balance={balance!r} is neither 'auto' nor 'cost' nor a list of numbers of layers."
            )
        if balance == "auto" and layers.stage_starts:
            return _find_marked_ends(layers, count, name)
        return balance_stages(program, count)
    counts = [int(n) for n in balance]
    if len(counts) != count or sum(counts) != len(names) or min(counts) < 1:
        raise InvalidValueError(
            f"Pipeline: balance={counts} must have {count} numbers, each at least 1, that add up to the {len(names)} "
            f"layers of {name}: {names}."
        )
    return list(itertools.accumulate(counts))


def _find_marked_ends(layers: LayerCallRecorder, count: int, name: str) -> list[int]:
    starts = [n for n in layers.stage_starts if n > 0]
    if len(starts) != count - 1:
        raise InvalidValueError(
            f"Pipeline: {name} has {len(starts)} Stage() layers after its first layer, which make {len(starts) + 1} "
            f"stages; the pipeline has {count}. Change the marks or the mesh, or use balance='cost'."
        )
    return [*starts, len(layers.names)]


def balance_stages(program: PipelineProgram, count: int) -> list[int]:
    """Find the ends of stages that minimize the time of the slowest stage, by dynamic programming.

    The time of a stage is estimated from its arithmetic, from the memory traffic of its weights and
    their gradients, and from the bytes that it sends.

    Args:
      program: The program.
      count: Number of stages.

    Returns:
      For each stage the index after its last unit.
    """
    work, crossing = program.count_operations(), program.count_crossing_bytes()
    weights = program.list_weights()
    units = program.units

    def estimate_times(begin: int) -> list[float]:
        """Return the times of the stages [begin, end) for each end."""
        stage_weights: dict[int, int] = {}
        times, forward = [0.0] * (units + 1), 0.0
        for unit in range(begin, units):
            stage_weights |= dict(weights[unit])
            forward += work[unit] / _OPERATIONS_PER_SECOND
            sending = crossing[unit] / _LINK if unit + 1 < units else 0.0
            traffic = sum(stage_weights.values()) / _MEMORY
            times[unit + 1] = _COMPUTE_PASSES * forward + _WEIGHT_PASSES * traffic + 2 * sending
        return times

    times = [estimate_times(begin) for begin in range(units)]
    best: list[float] = [0.0] + [float("inf")] * units
    choices: list[list[int]] = []
    for stage in range(count):
        current, chosen = [float("inf")] * (units + 1), [0] * (units + 1)
        for end in range(stage + 1, units - (count - stage - 1) + 1):
            for begin in range(stage, end):
                slowest = max(best[begin], times[begin][end])
                if slowest < current[end]:
                    current[end], chosen[end] = slowest, begin
        best = current
        choices.append(chosen)
    ends = [units]
    for chosen in reversed(choices[1:]):
        ends.append(chosen[ends[-1]])
    return ends[::-1]


def summarize_names(names: Sequence[str]) -> str:
    """Return the names of a stage's layers, abbreviated if there are more than three."""
    if len(names) < 4:
        return ", ".join(names)
    return f"{names[0]}, ... {len(names) - 2} more ..., {names[-1]}"
