"""Map functions of strings and of images of all sizes, taken apart.

What such a function does on the host (reading, decoding, parsing) is recorded once and run for groups
of elements; files that become images of one size are read, decoded, resized and scaled by one compiled
call, straight to their place in a batch. What follows is a program of numbers, as every map's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.core.runtime import transfers
from meshflow.core.tracing.trace import Slot, Traced
from meshflow.core.values import nest
from meshflow.core.values.tensor import Tensor
from meshflow.data import structure
from meshflow.data.execution import affine, image_loading
from meshflow.data.execution.batched_gather import LeafGather
from meshflow.data.execution.on_cpu import compiled_for_cpu, on_cpu
from meshflow.environment.jax_internals import jex_core
from meshflow.files import paths
from meshflow.kernels import images, row_gather
from meshflow.ops.deferred_host_values import (
    Argument,
    Call,
    Draw,
    Part,
    Pending,
    Recording,
    is_known,
    values_of,
)
from meshflow.ops.files import FileContents, read_file
from meshflow.ops.host import on_host

__all__ = ["Kept", "Plan", "places"]

_AXES = {0: images.UP_DOWN, 1: images.LEFT_RIGHT}
# Elements that are computed at once: records, and images, of which each takes much longer.
_RECORDS, _IMAGES = 64, 16
# Bytes of results that may lie in one block.
_BLOCK = 1 << 28


class Kept:
    """A result of a map function that no program gives: a string, or an array of unknown size.

    Args:
      pending: what stands for it.
    """

    def __init__(self, pending: Pending) -> None:
        self.pending = pending


class _Group:
    """Elements that are computed together.

    Args:
      leaves: the leaves of each element.
      keys: int64 [elements, random ops, 3].
    """

    def __init__(self, leaves: list[list[Any]], keys: np.ndarray) -> None:
        self.leaves, self.keys = leaves, keys
        self._called: dict[Call, list[Any]] = {}

    def __len__(self) -> int:
        return len(self.leaves)

    def column(self, source: Any, stand_ins: dict[int, Any]) -> Any:
        """The values of all elements, by their source: an array with a first dimension, or a list."""
        if isinstance(source, Argument):
            return [leaves[source.number] for leaves in self.leaves]
        if isinstance(source, Draw):
            return self.keys[:, source.position]
        call = source.call
        if call not in self._called:
            self._called[call] = self._results(call, stand_ins)
        return self._called[call][source.number]

    def texts(self, source: Any, stand_ins: dict[int, Any]) -> list[bytes]:
        """The values of all elements, which are strings."""
        return [structure.scalar(text)[()] for text in self.column(source, stand_ins)]

    def _results(self, call: Call, stand_ins: dict[int, Any]) -> list[Any]:
        if call.batch is not None:
            texts = np.empty(len(self), object)
            texts[:] = self.texts(call.args[0].source, stand_ins)
            return [np.asarray(t._value) for t in nest.flatten(call.batch(Tensor(texts)))]
        found = []
        for i in range(len(self)):

            def known(value: Any, i: int = i) -> Tensor | None:
                source = value.source if isinstance(value, Pending) else stand_ins.get(id(value))
                if source is None:
                    return None
                return self._tensor(source, i, stand_ins)

            found.append(values_of(call, known))
        return [list(column) for column in zip(*found, strict=True)]

    def _tensor(self, source: Any, i: int, stand_ins: dict[int, Any]) -> Tensor:
        """A value of element i; what was read from a file knows which, for errors."""
        value = structure.scalar(self.column(source, stand_ins)[i])
        if not isinstance(source, Part) or source.call.function is not read_file:
            return Tensor(value)
        (name,) = source.call.args or (source.call.kwargs["filename"],)
        if isinstance(name, Pending):
            name = structure.scalar(self.column(name.source, stand_ins)[i])[()]
        return FileContents(value[()], paths.text(name))


class _Image(NamedTuple):
    """A result that is loaded straight to its place.

    Attributes:
      loader: how.
      affine_map: what is done after resizing.
      wanted: the variables of the program that it needs for each element, by their numbers among its results.
    """

    loader: image_loading.Loader
    affine_map: affine.AffineMap
    wanted: dict[Any, int]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the result."""
        window = self.affine_map.window
        how = self.loader.how
        return (how.height, how.width) if window is None else (window[0][0], window[0][1])


class Plan:
    """How a map function's results are made.

    Args:
      traced: the program, whose captures are stand-ins of inputs among others.
      recording: what is done before.
      arguments: the numbers of the element's leaves that are the program's arguments.
      spec: the spec of the results.

    Attributes:
      traced: the program, with its inputs as arguments.
      spec: likewise.
      draws: of its random ops, the seeds, None for those without, and what they use of a counter.
      loads: whether it does more on the host than parse strings.
    """

    def __init__(
        self, traced: Traced, recording: Recording, arguments: Sequence[int], spec: Any
    ) -> None:
        self.spec, self._structure = spec, traced.structure
        self._recording = recording  # whose tensors are told apart by their identities
        self._stand_ins = recording.sources
        sources: list[Any] = [Argument(i) for i in arguments]
        self.draws = [(s.seed, s.used) for _, s in recording.inputs if isinstance(s, Draw)]
        self.traced, self._sources = _with_inputs(traced, sources, recording)
        kept = [leaf.pending for leaf in nest.flatten(traced.structure) if isinstance(leaf, Kept)]
        sources = [*self._sources, *(p.source for p in kept)]
        calls = [s.call for s in sources if isinstance(s, Part)]
        self.loads = any(call.batch is None for call in calls)
        self._find_images()

    @property
    def size(self) -> int:
        """How many elements are best computed at once."""
        return _IMAGES if self.loads else _RECORDS

    @property
    def words(self) -> str:
        """What it does, for `explain`."""
        if self._images:
            return "it loads images, in groups"
        return "it calls Python, in groups" if self.loads else "it parses strings"

    @property
    def vectorizes(self) -> bool:
        """Whether it can make any elements at once, in any order."""
        return not self.draws and not self.loads and all(map(is_known, nest.flatten(self.spec)))

    def _find_images(self) -> None:
        """Finds which results are loaded to their places, which are other affine maps, and what is left."""
        traced, jaxpr = self.traced, self.traced.closed.jaxpr
        found = affine.find(traced, mirrors=True)
        self._images: dict[int, _Image] = {}
        self._affine_maps: dict[int, affine.AffineMap] = {}
        used = [None if affine_map is None else affine_map.leaf for affine_map in found]
        wanted: list[Any] = []
        others = [i for i, affine_map in enumerate(found) if affine_map is None]
        busy = set(affine.arguments_of(traced, others))
        for i, affine_map in enumerate(found):
            if affine_map is None:
                continue
            loader = image_loading.find(self._sources[affine_map.leaf])
            alone = used.count(affine_map.leaf) == 1 and affine_map.leaf not in busy
            axes = [axis for axis, _ in affine_map.mirrors]
            alike = all(
                isinstance(s, affine.ComputedStep) or s.value.ndim == 0
                for s in affine_map.steps or ()
            )
            fits = len(set(axes)) == len(axes) and set(axes) <= set(_AXES) and (alike or not axes)
            if (
                loader is not None
                and alone
                and fits
                and (affine_map.shape is None or affine_map.window)
            ):
                needs = [variable for _, variable in affine_map.mirrors]
                needs += [
                    s.variable for s in affine_map.steps or () if isinstance(s, affine.ComputedStep)
                ]
                needs += affine_map.window[1] if affine_map.window else ()
                places = {v: len(wanted) + n for n, v in enumerate(dict.fromkeys(needs))}
                wanted += places
                self._images[i] = _Image(loader, affine_map, places)
            elif affine_map.plain:
                self._affine_maps[i] = affine_map
        self._computed = [
            i for i in range(traced.count) if i not in {**self._images, **self._affine_maps}
        ]
        outputs = [*wanted, *(jaxpr.outvars[i] for i in self._computed)]
        self._helpers = len(wanted)
        closed = traced.closed
        part = jaxpr.replace(outvars=outputs, debug_info=jaxpr.debug_info.with_unknown_names())
        self._program: Any = None
        self._needed: list[int] = []
        if outputs:
            self._needed = _needed(part, len(self._sources))
            run = jex_core.jaxpr_as_fun(jex_core.ClosedJaxpr(part, closed.consts))
            in_avals = closed.in_avals[: len(self._sources)]

            def computed(_: Any, inputs: list[Any], captures: list[Any]) -> list[Any]:
                given = dict(zip(self._needed, inputs, strict=True))
                full = [given.get(i, np.zeros(a.shape, a.dtype)) for i, a in enumerate(in_avals)]
                return run(*full, *captures)

            self._program = compiled_for_cpu(jax.vmap(computed, in_axes=(0, 0, None)))

    def together(self, wanted: int) -> int:
        """How many elements' results lie in one block, if so many are wanted, as they become a batch."""
        size = sum(a.size * a.dtype.itemsize for a in self.traced.closed.out_avals)
        return wanted if wanted * size <= _BLOCK else 1

    def blocks(self, count: int) -> list[np.ndarray]:
        """Where the results of elements that follow each other go."""
        specs = self.traced.out_specs
        return [transfers.fresh((count, *s.shape.as_list()), s.dtype.dtype) for s in specs]

    def many(self, columns: list[Any]) -> list[np.ndarray]:
        """The results for many elements, given and returned as stacked leaves; if it vectorizes."""
        count = len(columns[0])
        leaves = [[structure.scalar(value) for value in row] for row in zip(*columns, strict=True)]
        blocks = self.blocks(count)
        self.results(leaves, np.zeros((count, 0, 3), np.int64), places(blocks, count))
        return blocks

    def results(
        self, leaves: list[list[Any]], keys: np.ndarray, places: list[list[Any]]
    ) -> list[Any]:
        """The results for elements.

        Args:
          leaves: the leaves of each.
          keys: int64 [elements, random ops, 3], what the ops draw.
          places: the rows of blocks for each.
        """
        with on_host(), on_cpu():
            return self._results(_Group(leaves, keys), places)

    def _results(self, group: _Group, places: list[list[Any]]) -> list[Any]:
        column = lambda source: group.column(source, self._stand_ins)
        stacked: dict[int, np.ndarray] = {}

        def leaf(number: int) -> np.ndarray:
            if number not in stacked:
                loader = image_loading.find(self._sources[number])
                if loader is None:
                    stacked[number] = _stack(column(self._sources[number]))
                else:
                    aval = self.traced.closed.in_avals[number]
                    block = transfers.fresh((len(group), *aval.shape), aval.dtype)
                    plain = _Image(loader, affine.AffineMap(number, None, None), {})
                    self._load(group, plain, [], list(block))
                    stacked[number] = block
            return stacked[number]

        computed: list[np.ndarray] = []
        if self._program is not None:
            captures = [c._value for c in self.traced.captures]
            # There is one program, for the largest groups.
            inputs = [_filled(leaf(i), self.size) for i in self._needed]
            count = len(group)
            # One of them is always there, for the number of elements.
            numbers = _filled(np.zeros(count, np.uint8), self.size)
            found = self._program(numbers, inputs, captures)
            computed = [np.asarray(r)[:count] for r in found]
        for i, image in self._images.items():
            self._load(group, image, computed, [row[i][0] for row in places])
        values = {
            i: LeafGather(leaf(c.leaf), c.steps, c.shape).all()
            for i, c in self._affine_maps.items()
        }
        values |= dict(zip(self._computed, computed[self._helpers :], strict=True))
        for i, value in values.items():
            for row, number in zip(places, value, strict=True):
                row[i][0] = number
        return [self._rebuilt(group, place, n) for n, place in enumerate(places)]

    def _load(
        self, group: _Group, image: _Image, computed: list[np.ndarray], out: list[np.ndarray]
    ) -> None:
        texts = group.texts(image.loader.text, self._stand_ins)
        value = lambda variable: computed[image.wanted[variable]].reshape(len(group))
        windows, affine_map = _windows(image, len(group), value), image.affine_map
        steps = _steps(affine_map.steps or (), len(group), value)
        mirrored = np.zeros(len(group), np.uint8)
        for axis, variable in affine_map.mirrors:
            mirrored |= value(variable).astype(np.uint8) * np.uint8(_AXES[axis])
        failed = images.load(texts, image.loader.how, windows, steps, mirrored, out)
        for i in np.flatnonzero(failed):
            one = _Group([group.leaves[i]], group.keys[i : i + 1])
            made = one.column(self._sources[affine_map.leaf], self._stand_ins)[0]
            top, left, height, width = windows[i]
            out[i][...] = made[top : top + height, left : left + width]
            row_gather.operate(out[i].reshape(1, -1), steps[i])
            axes = [axis for axis, bit in _AXES.items() if mirrored[i] & bit]
            if axes:
                out[i][...] = np.flip(out[i], tuple(axes)).copy()

    def _rebuilt(self, group: _Group, place: list[Any], number: int) -> Any:
        def leaf(value: Any) -> Any:
            if isinstance(value, Slot):
                return place[value.index][0, ...]
            if isinstance(value, Kept):
                column = group.column(value.pending.source, self._stand_ins)
                return structure.scalar(column[number])
            return structure.to_array(value)

        return structure.normalize(self._structure, leaf)


def _windows(image: _Image, count: int, value: Callable[[Any], np.ndarray]) -> np.ndarray:
    """Which parts of resized images are wanted: top, left, height and width of each."""
    how, size = image.loader.how, image.size
    windows = np.tile(np.array([0, 0, *size], np.int64), (count, 1))
    if image.affine_map.window is not None:
        for axis, (variable, whole) in enumerate(
            zip(image.affine_map.window[1], (how.height, how.width), strict=True)
        ):
            # As XLA begins, so that all is inside.
            windows[:, axis] = np.clip(value(variable), 0, whole - size[axis])
    return windows


def _steps(
    steps: Sequence[Any], count: int, value: Callable[[Any], np.ndarray]
) -> list[Sequence[row_gather.Step]]:
    """The operations on each image."""
    if not any(isinstance(step, affine.ComputedStep) for step in steps):
        return [steps] * count
    numbers = [
        value(s.variable).astype(np.float32) if isinstance(s, affine.ComputedStep) else None
        for s in steps
    ]
    return [
        [
            step if known is None else row_gather.Step(step.operation, known[i : i + 1].reshape(()))
            for step, known in zip(steps, numbers, strict=True)
        ]
        for i in range(count)
    ]


def places(blocks: list[np.ndarray], count: int) -> list[list[np.ndarray]]:
    """For each of so many elements its rows of the blocks, as blocks of one."""
    return [[block[i : i + 1] for block in blocks] for i in range(count)]


def _with_inputs(
    traced: Traced, sources: list[Any], recording: Recording
) -> tuple[Traced, list[Any]]:
    """The program with its stand-ins as arguments, and where all its arguments come from."""
    closed, captures = traced.closed, traced.captures
    stand_ins = {id(captured): source for captured, source in recording.inputs}
    count = len(closed.jaxpr.invars) - len(captures)
    ours = [i for i, captured in enumerate(captures) if id(captured) in stand_ins]
    rest = [i for i in range(len(captures)) if i not in ours]
    variables = closed.jaxpr.invars
    jaxpr = closed.jaxpr.replace(
        invars=[*variables[:count], *(variables[count + i] for i in [*ours, *rest])],
        debug_info=closed.jaxpr.debug_info.with_unknown_names(),
    )
    made = Traced(
        traced.name,
        jex_core.ClosedJaxpr(jaxpr, closed.consts),
        [captures[i] for i in rest],
        traced.writes,
        traced.structure,
        traced.count,
    )
    return made, [*sources, *(stand_ins[id(captures[i])] for i in ours)]


def _needed(jaxpr: Any, count: int) -> list[int]:
    """Which of a program's first arguments its results depend on."""
    needed = {v for v in jaxpr.outvars if not isinstance(v, jex_core.Literal)}
    for equation in reversed(jaxpr.eqns):
        if needed & set(equation.outvars):
            needed |= {v for v in equation.invars if not isinstance(v, jex_core.Literal)}
    return [i for i, variable in enumerate(jaxpr.invars[:count]) if variable in needed]


def _stack(column: Any) -> np.ndarray:
    return column if isinstance(column, np.ndarray) else np.stack(column)


def _filled(array: np.ndarray, size: int) -> np.ndarray:
    """An array with its last row repeated up to a number of rows."""
    missing = size - len(array)
    return np.concatenate([array, array[-1:].repeat(missing, 0)]) if missing > 0 else array
