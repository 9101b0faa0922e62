"""Which layers of a model are which stage of a pipeline."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.tracing.trace import Traced
from meshflow.distribute.parallel.cutting import Program, StageProgram, cut

__all__ = ["Layers", "Stages", "stages_of"]

# Rates by which work, memory and exchange are weighed against each other; only their ratios matter.
_WORK, _MEMORY, _LINK = 50e9, 10e9, 5e9
LABEL = "call-of-layer-"


class Layers:
    """The calls of layers while a function is traced, in order; models are looked into.

    Attributes:
      names: the names of the layers called.
      begin: the numbers of the calls that a stage begins at, as `tf.keras.layers.Stage()` says.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.begin: list[int] = []
        self._inside = False

    @contextlib.contextmanager
    def __call__(self, layer: Any, whole: bool = False) -> Iterator[None]:
        """The scope in which a layer computes.

        Args:
          layer: the layer.
          whole: whether a model counts as one layer, too.
        """
        if self._inside or (hasattr(layer, "_current_graph") and not whole):
            yield
            return
        number = len(self.names)
        self.names.append(layer.name)
        if getattr(layer, "begins_stage", False):
            self.begin.append(number)
        self._inside = True
        try:
            with jax.named_scope(f"{LABEL}{number}"):
                yield
        finally:
            self._inside = False

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """While calls of layers are noted here."""
        saved, context.labels = context.labels, self
        try:
            yield
        finally:
            context.labels = saved

    def units(self, traced: Traced) -> list[int]:
        """The call that each equation belongs to; between two calls, the one before."""
        found = []
        current = 0
        for eqn in traced.closed.jaxpr.eqns:
            label = re.search(rf"{LABEL}(\d+)", str(eqn.source_info.name_stack))
            current = max(current, int(label[1])) if label else current
            found.append(current)
        return found


class Stages(NamedTuple):
    """A traced program in stages.

    Attributes:
      program: that of one micro-batch.
      programs: those of its stages.
      layers: the names of the layers in each stage.
      work: multiplications and additions of each stage's forward pass.
      weights: bytes of the trained weights of each stage.
    """

    program: Program
    programs: list[StageProgram]
    layers: list[list[str]]
    work: list[float]
    weights: list[int]


def stages_of(
    tracer: Callable[[], Traced],
    count: int,
    balance: Any = "auto",
    trained: Callable[[Any], bool] = lambda c: bool(getattr(c, "trainable", False)),
    wanted: Callable[[Traced], Sequence[int]] = lambda traced: range(traced.count),
    name: str = "model",
) -> Stages:
    """Traces a function of a micro-batch, and cuts it.

    Args:
      tracer: traces it; it calls a model's layers.
      count: how many stages.
      balance: "auto" cuts at the `Stage()` layers where there are any, and else where the slowest stage is
        fastest by a model of costs; "cost" does the latter always; a list has for each stage how many layers.
      trained: whether a capture is trained.
      wanted: the numbers of the results that are needed.
      name: what errors call the model.

    Raises:
      ValueError: for more stages than layers, and marks or counts that do not fit.
    """
    layers = Layers()
    with layers.noted():
        traced = tracer()
    # Names of mesh dimensions are effects for JAX, too.
    outside = [e for e in traced.closed.effects if type(e).__name__ != "NamedAxisEffect"]
    if outside or traced.iterator_captures or traced.infeeds:
        raise InvalidValueError(
            f"Pipeline: {name} calls Python or takes elements of iterators while it runs, which a stage cannot."
        )
    chosen = [i for i, c in enumerate(traced.captures) if trained(c)]
    units = max(len(layers.names), 1)
    program = Program(traced, layers.units(traced), units, chosen, wanted(traced))
    ends = _ends(balance, layers, program, count, name)
    costs, weights = program.costs(), program.weights()
    parts = [range(a, b) for a, b in itertools.pairwise([0, *ends])]
    return Stages(
        program,
        cut(program, ends),
        [[layers.names[u] for u in part if u < len(layers.names)] for part in parts],
        [sum(costs[u] for u in part) for part in parts],
        [sum(dict(item for u in part for item in weights[u]).values()) for part in parts],
    )


def _ends(balance: Any, layers: Layers, program: Program, count: int, name: str) -> list[int]:
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
        if balance == "auto" and layers.begin:
            return _marked(layers, count, name)
        return balanced(program, count)
    counts = [int(n) for n in balance]
    if len(counts) != count or sum(counts) != len(names) or min(counts) < 1:
        raise InvalidValueError(
            f"Pipeline: balance={counts} must have {count} numbers, each at least 1, that add up to the {len(names)} "
            f"layers of {name}: {names}."
        )
    return list(itertools.accumulate(counts))


def _marked(layers: Layers, count: int, name: str) -> list[int]:
    begin = [n for n in layers.begin if n > 0]
    if len(begin) != count - 1:
        raise InvalidValueError(
            f"Pipeline: {name} has {len(begin)} Stage() layers behind its first layer, which make {len(begin) + 1} "
            f"stages; the pipeline has {count}. Change the marks or the mesh, or use balance='cost'."
        )
    return [*begin, len(layers.names)]


def balanced(program: Program, count: int) -> list[int]:
    """The ends of stages of which the slowest is fastest, by dynamic programming.

    A stage's time is its arithmetic, the reading and adding of its weights and their gradients, and the
    sending of what crosses behind it.
    """
    work, crossing = program.costs(), program.crossing()
    weights = program.weights()
    units = program.units

    def times(begin: int) -> list[float]:
        """The times of the stages [begin, end) for each end."""
        known: dict[int, int] = {}
        found, done = [0.0] * (units + 1), 0.0
        for unit in range(begin, units):
            known |= dict(weights[unit])
            done += work[unit] / _WORK
            sent = crossing[unit] / _LINK if unit + 1 < units else 0.0
            found[unit + 1] = 3 * done + 4 * sum(known.values()) / _MEMORY + 2 * sent
        return found

    time_of = [times(begin) for begin in range(units)]
    best: list[float] = [0.0] + [float("inf")] * units
    choices: list[list[int]] = []
    for stage in range(count):
        now, chosen = [float("inf")] * (units + 1), [0] * (units + 1)
        for end in range(stage + 1, units - (count - stage - 1) + 1):
            for begin in range(stage, end):
                slowest = max(best[begin], time_of[begin][end])
                if slowest < now[end]:
                    now[end], chosen[end] = slowest, begin
        best = now
        choices.append(chosen)
    ends = [units]
    for chosen in reversed(choices[1:]):
        ends.append(chosen[ends[-1]])
    return ends[::-1]


def described(names: Sequence[str]) -> str:
    """The names of a stage's layers in a few words."""
    if len(names) < 4:
        return ", ".join(names)
    return f"{names[0]}, ... {len(names) - 2} more ..., {names[-1]}"
