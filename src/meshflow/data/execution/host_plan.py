"""Execution of map functions of strings and of images of various sizes, partly on the host.

The host ops of such a function (reading, decoding, parsing) are recorded once and then run for
groups of elements. Image files that are resized to one size are read, decoded, resized and scaled
by one compiled call, directly into their slots in a batch. The rest of the function is a compiled
program of numeric values, as for every map.
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
from meshflow.data.execution.cpu_programs import compile_for_cpu, cpu_scope
from meshflow.data.execution.image_loading import Source
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Jaxpr, PyTree, Var
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
# Number of elements that are computed together: parsed records, and images, which take much longer.
_RECORDS, _IMAGES = 64, 16
# Largest size of the results in one block of memory, in bytes.
_BLOCK = 1 << 28


class Kept:
    """A result of a map function that only the host can compute.

    It is a string, or an array of unknown size.

    Args:
      pending: The deferred value.
    """

    def __init__(self, pending: Pending) -> None:
        self.pending = pending


class _Group:
    """Elements that are computed together, with the results of host calls for them.

    Args:
      leaves: The leaves of each element.
      keys: Random keys, int64 [elements, random ops, 3].
    """

    def __init__(self, leaves: list[list[Any]], keys: np.ndarray) -> None:
        self.leaves, self.keys = leaves, keys
        self._called: dict[Call, list[Any]] = {}

    def __len__(self) -> int:
        return len(self.leaves)

    def column(self, source: Source, placeholders: dict[int, Any]) -> np.ndarray | list[Any]:
        """Return the values of a source for all elements: a stacked array, or a list."""
        if isinstance(source, Argument):
            return [leaves[source.number] for leaves in self.leaves]
        if isinstance(source, Draw):
            return self.keys[:, source.position]
        call = source.call
        if call not in self._called:
            self._called[call] = self._results(call, placeholders)
        return self._called[call][source.number]

    def texts(self, source: Source, placeholders: dict[int, Any]) -> list[bytes]:
        """Return the values of a source for all elements as byte strings."""
        return [structure.scalar(text)[()] for text in self.column(source, placeholders)]

    def _results(self, call: Call, placeholders: dict[int, Any]) -> list[Any]:
        """Run a host call for all elements; return a column for each of its results."""
        if call.batch is not None:
            texts = np.empty(len(self), object)
            texts[:] = self.texts(call.args[0].source, placeholders)
            return [np.asarray(t._value) for t in nest.flatten(call.batch(Tensor(texts)))]
        results = []
        for i in range(len(self)):

            def get_value(value: Any, i: int = i) -> Tensor | None:
                source = value.source if isinstance(value, Pending) else placeholders.get(id(value))
                if source is None:
                    return None
                return self._tensor(source, i, placeholders)

            results.append(values_of(call, get_value))
        return [list(column) for column in zip(*results, strict=True)]

    def _tensor(self, source: Source, i: int, placeholders: dict[int, Any]) -> Tensor:
        """Return the value of a source for element i.

        The contents of a file carry its name, for errors.
        """
        value = structure.scalar(self.column(source, placeholders)[i])
        if not isinstance(source, Part) or source.call.function is not read_file:
            return Tensor(value)
        (name,) = source.call.args or (source.call.kwargs["filename"],)
        if isinstance(name, Pending):
            name = structure.scalar(self.column(name.source, placeholders)[i])[()]
        return FileContents(value[()], paths.text(name))


class _Image(NamedTuple):
    """A result that is loaded from an image file directly into its slot.

    Attributes:
      loader: The loader of the image.
      affine_map: The operations after resizing.
      wanted: For each variable of the affine map its index among the results of the program.
    """

    loader: image_loading.Loader
    affine_map: affine.AffineMap
    wanted: dict[Any, int]

    @property
    def size(self) -> tuple[int, int]:
        """Return the height and width of the result."""
        window = self.affine_map.window
        loading = self.loader.how
        return (loading.height, loading.width) if window is None else (window[0][0], window[0][1])


class Plan:
    """The execution of a map function that partly runs on the host.

    Args:
      traced: The program; some of its captures are placeholders for inputs that the host computes.
      recording: The recorded host calls.
      arguments: Indices of the leaves of an element that are arguments of the program.
      spec: Spec of the results.

    Attributes:
      traced: The program, with the inputs from the host as further arguments.
      spec: Spec of the results.
      draws: For each random op its seed (None if it has none), and how far it advances its counter.
      loads: Whether the host does more than parsing strings.
    """

    def __init__(
        self, traced: Traced, recording: Recording, arguments: Sequence[int], spec: PyTree
    ) -> None:
        self.spec, self._structure = spec, traced.structure
        self._recording = (
            recording  # The placeholders are identified by `id`, so they are kept alive.
        )
        self._stand_ins = recording.sources
        sources: list[Any] = [Argument(i) for i in arguments]
        self.draws = [(s.seed, s.used) for _, s in recording.inputs if isinstance(s, Draw)]
        self.traced, self._sources = _with_inputs(traced, sources, recording)
        host_results = [
            leaf.pending for leaf in nest.flatten(traced.structure) if isinstance(leaf, Kept)
        ]
        sources = [*self._sources, *(p.source for p in host_results)]
        calls = [s.call for s in sources if isinstance(s, Part)]
        self.loads = any(call.batch is None for call in calls)
        self._find_images()

    @property
    def size(self) -> int:
        """Return how many elements should be computed together."""
        return _IMAGES if self.loads else _RECORDS

    @property
    def words(self) -> str:
        """Return the description that `explain` shows."""
        if self._images:
            return "it loads images, in groups"
        return "it calls Python, in groups" if self.loads else "it parses strings"

    @property
    def vectorizes(self) -> bool:
        """Return whether the plan can compute many elements at once, in any order."""
        return not self.draws and not self.loads and all(map(is_known, nest.flatten(self.spec)))

    def _find_images(self) -> None:
        """Partition the results into loaded images, other affine maps, and results of the program."""
        traced, jaxpr = self.traced, self.traced.closed.jaxpr
        affine_maps = affine.find(traced, mirrors=True)
        self._images: dict[int, _Image] = {}
        self._affine_maps: dict[int, affine.AffineMap] = {}
        used_leaves = [None if m is None else m.leaf for m in affine_maps]
        image_variables: list[Var] = []
        others = [i for i, m in enumerate(affine_maps) if m is None]
        used_by_program = set(affine.arguments_of(traced, others))
        for i, affine_map in enumerate(affine_maps):
            if affine_map is None:
                continue
            loader = image_loading.find(self._sources[affine_map.leaf])
            is_only_use = (
                used_leaves.count(affine_map.leaf) == 1 and affine_map.leaf not in used_by_program
            )
            axes = [axis for axis, _ in affine_map.mirrors]
            has_scalar_steps = all(
                isinstance(s, affine.ComputedStep) or s.value.ndim == 0
                for s in affine_map.steps or ()
            )
            can_mirror = not axes or (
                has_scalar_steps and len(set(axes)) == len(axes) and set(axes) <= set(_AXES)
            )
            if (
                loader is not None
                and is_only_use
                and can_mirror
                and (affine_map.shape is None or affine_map.window)
            ):
                variables = [variable for _, variable in affine_map.mirrors]
                variables += [
                    s.variable for s in affine_map.steps or () if isinstance(s, affine.ComputedStep)
                ]
                variables += affine_map.window[1] if affine_map.window else ()
                indices = {
                    v: len(image_variables) + n for n, v in enumerate(dict.fromkeys(variables))
                }
                image_variables += indices
                self._images[i] = _Image(loader, affine_map, indices)
            elif affine_map.plain:
                self._affine_maps[i] = affine_map
        self._computed = [
            i for i in range(traced.count) if i not in {**self._images, **self._affine_maps}
        ]
        outputs = [*image_variables, *(jaxpr.outvars[i] for i in self._computed)]
        self._helpers = len(image_variables)
        closed = traced.closed
        part = jaxpr.replace(outvars=outputs, debug_info=jaxpr.debug_info.with_unknown_names())
        self._program: Any = None
        self._needed: list[int] = []
        if outputs:
            self._needed = _needed(part, len(self._sources))
            run = jex_core.jaxpr_as_fun(jex_core.ClosedJaxpr(part, closed.consts))
            in_avals = closed.in_avals[: len(self._sources)]

            def compute(_: np.ndarray, inputs: list[Any], captures: list[Any]) -> list[Any]:
                used = dict(zip(self._needed, inputs, strict=True))
                full = [used.get(i, np.zeros(a.shape, a.dtype)) for i, a in enumerate(in_avals)]
                return run(*full, *captures)

            self._program = compile_for_cpu(jax.vmap(compute, in_axes=(0, 0, None)))

    def together(self, batch_size: int) -> int:
        """Return how many elements have their results in one block of memory.

        Args:
          batch_size: Batch size of the consumer.
        """
        num_bytes = sum(a.size * a.dtype.itemsize for a in self.traced.closed.out_avals)
        return batch_size if batch_size * num_bytes <= _BLOCK else 1

    def blocks(self, count: int) -> list[np.ndarray]:
        """Allocate memory for the results of consecutive elements, one block for each result."""
        specs = self.traced.out_specs
        return [transfers.fresh((count, *s.shape.as_list()), s.dtype.dtype) for s in specs]

    def many(self, columns: list[Any]) -> list[np.ndarray]:
        """Compute the results of stacked leaves, stacked; only if the plan `vectorizes`."""
        count = len(columns[0])
        leaves = [[structure.scalar(value) for value in row] for row in zip(*columns, strict=True)]
        blocks = self.blocks(count)
        self.results(leaves, np.zeros((count, 0, 3), np.int64), places(blocks, count))
        return blocks

    def results(
        self, leaves: list[list[Any]], keys: np.ndarray, slots: list[list[Any]]
    ) -> list[Any]:
        """Compute the results of a group of elements.

        Args:
          leaves: The leaves of each element.
          keys: Random keys, int64 [elements, random ops, 3].
          slots: For each element its slots in the blocks of memory.

        Returns:
          The resulting elements.
        """
        with on_host(), cpu_scope():
            return self._results(_Group(leaves, keys), slots)

    def _results(self, group: _Group, slots: list[list[Any]]) -> list[Any]:
        column = lambda source: group.column(source, self._stand_ins)
        stacked: dict[int, np.ndarray] = {}

        def get_leaf(index: int) -> np.ndarray:
            if index not in stacked:
                loader = image_loading.find(self._sources[index])
                if loader is None:
                    stacked[index] = _stack(column(self._sources[index]))
                else:
                    aval = self.traced.closed.in_avals[index]
                    block = transfers.fresh((len(group), *aval.shape), aval.dtype)
                    image = _Image(loader, affine.AffineMap(index, None, None), {})
                    self._load(group, image, [], list(block))
                    stacked[index] = block
            return stacked[index]

        computed: list[np.ndarray] = []
        if self._program is not None:
            captures = [c._value for c in self.traced.captures]
            # The program is compiled once, for groups of the largest size.
            inputs = [_filled(get_leaf(i), self.size) for i in self._needed]
            count = len(group)
            # `vmap` needs at least one argument with a batch axis.
            batch_axis = _filled(np.zeros(count, np.uint8), self.size)
            results = self._program(batch_axis, inputs, captures)
            computed = [np.asarray(r)[:count] for r in results]
        for i, image in self._images.items():
            self._load(group, image, computed, [row[i][0] for row in slots])
        values = {
            i: LeafGather(get_leaf(m.leaf), m.steps, m.shape).all()
            for i, m in self._affine_maps.items()
        }
        values |= dict(zip(self._computed, computed[self._helpers :], strict=True))
        for i, value in values.items():
            for row, item in zip(slots, value, strict=True):
                row[i][0] = item
        return [self._rebuilt(group, row, n) for n, row in enumerate(slots)]

    def _load(
        self, group: _Group, image: _Image, computed: list[np.ndarray], out: list[np.ndarray]
    ) -> None:
        """Load the images of a group into their slots; compute failed ones step by step."""
        texts = group.texts(image.loader.text, self._stand_ins)
        get_values = lambda variable: computed[image.wanted[variable]].reshape(len(group))
        windows, affine_map = _windows(image, len(group), get_values), image.affine_map
        steps = _steps(affine_map.steps or (), len(group), get_values)
        mirrored = np.zeros(len(group), np.uint8)
        for axis, variable in affine_map.mirrors:
            mirrored |= get_values(variable).astype(np.uint8) * np.uint8(_AXES[axis])
        failed = images.load(texts, image.loader.how, windows, steps, mirrored, out)
        for i in np.flatnonzero(failed):
            single = _Group([group.leaves[i]], group.keys[i : i + 1])
            resized = single.column(self._sources[affine_map.leaf], self._stand_ins)[0]
            top, left, height, width = windows[i]
            out[i][...] = resized[top : top + height, left : left + width]
            row_gather.operate(out[i].reshape(1, -1), steps[i])
            axes = [axis for axis, bit in _AXES.items() if mirrored[i] & bit]
            if axes:
                out[i][...] = np.flip(out[i], tuple(axes)).copy()

    def _rebuilt(self, group: _Group, slots: list[Any], index: int) -> PyTree:
        """Return the result for an element of the group in its structure."""

        def leaf(value: Any) -> Any:
            if isinstance(value, Slot):
                return slots[value.index][0, ...]
            if isinstance(value, Kept):
                column = group.column(value.pending.source, self._stand_ins)
                return structure.scalar(column[index])
            return structure.to_array(value)

        return structure.normalize(self._structure, leaf)


def _windows(image: _Image, count: int, get_values: Callable[[Any], np.ndarray]) -> np.ndarray:
    """Return the crops of the resized images: top, left, height and width of each."""
    loading, size = image.loader.how, image.size
    windows = np.tile(np.array([0, 0, *size], np.int64), (count, 1))
    if image.affine_map.window is not None:
        sizes = (loading.height, loading.width)
        for axis, (variable, full_size) in enumerate(
            zip(image.affine_map.window[1], sizes, strict=True)
        ):
            # XLA clamps the start of a dynamic slice in the same way.
            windows[:, axis] = np.clip(get_values(variable), 0, full_size - size[axis])
    return windows


def _steps(
    steps: Sequence[Any], count: int, get_values: Callable[[Any], np.ndarray]
) -> list[Sequence[row_gather.Step]]:
    """Return the operations on each image, with the scalars that the program computed."""
    if not any(isinstance(step, affine.ComputedStep) for step in steps):
        return [steps] * count
    columns = [
        get_values(s.variable).astype(np.float32) if isinstance(s, affine.ComputedStep) else None
        for s in steps
    ]
    return [
        [
            step
            if column is None
            else row_gather.Step(step.operation, column[i : i + 1].reshape(()))
            for step, column in zip(steps, columns, strict=True)
        ]
        for i in range(count)
    ]


def places(blocks: list[np.ndarray], count: int) -> list[list[np.ndarray]]:
    """Return the slots of each element: its rows of the blocks, each of length 1."""
    return [[block[i : i + 1] for block in blocks] for i in range(count)]


def _with_inputs(
    traced: Traced, sources: list[Any], recording: Recording
) -> tuple[Traced, list[Any]]:
    """Turn the placeholders among the captures of a program into arguments.

    Returns:
      The program, and the sources of all its arguments.
    """
    closed, captures = traced.closed, traced.captures
    placeholders = {id(captured): source for captured, source in recording.inputs}
    count = len(closed.jaxpr.invars) - len(captures)
    input_indices = [i for i, captured in enumerate(captures) if id(captured) in placeholders]
    other_indices = [i for i in range(len(captures)) if i not in input_indices]
    variables = closed.jaxpr.invars
    jaxpr = closed.jaxpr.replace(
        invars=[
            *variables[:count],
            *(variables[count + i] for i in [*input_indices, *other_indices]),
        ],
        debug_info=closed.jaxpr.debug_info.with_unknown_names(),
    )
    program = Traced(
        traced.name,
        jex_core.ClosedJaxpr(jaxpr, closed.consts),
        [captures[i] for i in other_indices],
        traced.writes,
        traced.structure,
        traced.count,
    )
    return program, [*sources, *(placeholders[id(captures[i])] for i in input_indices)]


def _needed(jaxpr: Jaxpr, count: int) -> list[int]:
    """Return which of the first `count` arguments the results of a program depend on."""
    used = {v for v in jaxpr.outvars if not isinstance(v, jex_core.Literal)}
    for equation in reversed(jaxpr.eqns):
        if used & set(equation.outvars):
            used |= {v for v in equation.invars if not isinstance(v, jex_core.Literal)}
    return [i for i, variable in enumerate(jaxpr.invars[:count]) if variable in used]


def _stack(column: np.ndarray | list[np.ndarray]) -> np.ndarray:
    return column if isinstance(column, np.ndarray) else np.stack(column)


def _filled(array: np.ndarray, size: int) -> np.ndarray:
    """Repeat the last row of an array up to a number of rows."""
    missing = size - len(array)
    return np.concatenate([array, array[-1:].repeat(missing, 0)]) if missing > 0 else array
