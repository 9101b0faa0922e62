"""Execution of map functions of strings and of images of various sizes, partly on the host.

The host ops of such a function (reading, decoding, parsing) are recorded once and then run for
groups of elements. Image files that are resized to one size are read, decoded, resized and scaled
by one compiled call, directly into their slots in a batch. The rest of the function is a compiled
program of numeric values, as for every map.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.core.dispatch.tiers import InterpretedProgram, is_interpreter_enabled
from meshflow.core.runtime import transfers
from meshflow.core.tracing.branch_checks import make_row_function
from meshflow.core.tracing.trace import TensorSlot, TracedFunction
from meshflow.core.values import nest
from meshflow.core.values.tensor import Tensor
from meshflow.data import structure
from meshflow.data.execution import affine, image_loading
from meshflow.data.execution.batched_gather import LeafGather
from meshflow.data.execution.cpu_programs import compile_for_cpu, cpu_scope
from meshflow.data.execution.image_loading import Source
from meshflow.data.execution.numeric_calls import NumericCalls, find_stages
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import PyTree, Var
from meshflow.files import paths
from meshflow.kernels import images, row_gather
from meshflow.ops.deferred_host_values import (
    Argument,
    CallResult,
    Column,
    DeferredValue,
    HostCallRecording,
    KeyDraw,
    RecordedHostCall,
    call_function,
)
from meshflow.ops.files import FileContents, read_file
from meshflow.ops.host import host_scope
from meshflow.passes.jaxprs import select_needed_equations

_AXES = {0: images.UP_DOWN, 1: images.LEFT_RIGHT}
# Number of elements that are computed together: parsed records, and images, which take much longer.
_RECORDS_PER_GROUP, _IMAGES_PER_GROUP = 64, 16
# Largest size of the results in one block of memory, in bytes.
_MAX_BLOCK_BYTES = 1 << 28
# A program that is compiled in less than the time of so many runs is compiled.
_MIN_RUNS = 128


class PendingHostResult:
    """A result of a map function that only the host can compute.

    It is a string, or an array of unknown size.

    Args:
      pending: The deferred value.
    """

    def __init__(self, pending: DeferredValue) -> None:
        self.pending = pending


class _ElementGroup:
    """Elements that are computed together, with the results of host calls for them.

    Args:
      leaves: The leaves of each element.
      keys: Random keys, int64 [elements, random ops, 3].
    """

    def __init__(self, leaves: list[list[Any]], keys: np.ndarray) -> None:
        self.leaves, self.keys = leaves, keys
        self._call_results: dict[RecordedHostCall, Sequence[Column]] = {}

    def __len__(self) -> int:
        return len(self.leaves)

    def get_column(self, source: Source, placeholders: dict[int, Any]) -> np.ndarray | list[Any]:
        """Return the values of a source for all elements: a stacked array, or a list."""
        if isinstance(source, Argument):
            return [leaves[source.leaf_index] for leaves in self.leaves]
        if isinstance(source, KeyDraw):
            return self.keys[:, source.position]
        call = source.call
        if call not in self._call_results:
            self._call_results[call] = self._run_call(call, placeholders)
        return self._call_results[call][source.leaf_index]

    def run_numeric_calls(self, calls: NumericCalls, placeholders: dict[int, Any]) -> None:
        """Run the calls that one program computes, if it supports these elements."""
        get_column = lambda source: self.get_column(source, placeholders)
        self._call_results |= calls.run(len(self), get_column)

    def get_strings(self, source: Source, placeholders: dict[int, Any]) -> list[bytes]:
        """Return the values of a source for all elements as byte strings."""
        return [structure.item_to_array(text)[()] for text in self.get_column(source, placeholders)]

    def _run_call(self, call: RecordedHostCall, placeholders: dict[int, Any]) -> Sequence[Column]:
        """Run a host call for all elements; return a column for each of its results."""
        if call.batch is not None and call.operand is not None:
            column = self.get_column(call.operand.source, placeholders)
            arrays = list(map(structure.item_to_array, column))
            # The function of a tensor raises TensorFlow's error about an index.
            with contextlib.suppress(IndexError):
                return call.batch(arrays)
        elif call.batch is not None:
            values = nest.flatten((call.args, call.kwargs))
            with contextlib.suppress(IndexError, ValueError):
                return call.batch(
                    list(zip(*[self._get_values(v, placeholders) for v in values], strict=True))
                )
        results = []
        for i in range(len(self)):

            def get_value(value: Any, i: int = i) -> Tensor | None:
                source = (
                    value.source
                    if isinstance(value, DeferredValue)
                    else placeholders.get(id(value))
                )
                if source is None:
                    return None
                return self._get_tensor(source, i, placeholders)

            results.append([np.asarray(t.array) for t in call_function(call, get_value)])
        return [list(column) for column in zip(*results, strict=True)]

    def _get_values(self, value: Any, placeholders: dict[int, Any]) -> list[Any]:
        """Return an argument of a call for all elements."""
        source = value.source if isinstance(value, DeferredValue) else placeholders.get(id(value))
        if source is None:
            return [value] * len(self)
        return list(map(structure.item_to_array, self.get_column(source, placeholders)))

    def _get_tensor(self, source: Source, i: int, placeholders: dict[int, Any]) -> Tensor:
        """Return the value of a source for element i.

        The contents of a file carry its name, for errors.
        """
        value = structure.item_to_array(self.get_column(source, placeholders)[i])
        if not isinstance(source, CallResult) or source.call.function is not read_file:
            return Tensor(value)
        (name,) = source.call.args or (source.call.kwargs["filename"],)
        if isinstance(name, DeferredValue):
            name = structure.item_to_array(self.get_column(name.source, placeholders)[i])[()]
        return FileContents(value[()], paths.to_path_string(name))


class _LoadedImage(NamedTuple):
    """A result that is loaded from an image file directly into its slot.

    Attributes:
      loader: The loader of the image.
      affine_map: The operations after resizing.
      variable_indices: For each variable of the affine map its index among the results of the program.
    """

    loader: image_loading.ImageLoader
    affine_map: affine.AffineMap
    variable_indices: dict[Any, int]

    @property
    def size(self) -> tuple[int, int]:
        """Return the height and width of the result."""
        window = self.affine_map.window
        loading = self.loader.options
        return (loading.height, loading.width) if window is None else (window[0][0], window[0][1])


class HostPlan:
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
      holds_lock: Whether groups are mostly computed by Python, under the interpreter lock, because there are no images
        or files. Several threads would wait for each other.
    """

    def __init__(
        self,
        traced: TracedFunction,
        recording: HostCallRecording,
        arguments: Sequence[int],
        spec: PyTree,
    ) -> None:
        self.spec, self._structure = spec, traced.structure
        self._recording = (
            recording  # The placeholders are identified by `id`, so they are kept alive.
        )
        self._stand_ins = recording.sources
        sources: list[Any] = [Argument(i) for i in arguments]
        self.draws = [
            (s.seed, s.num_counters) for _, s in recording.inputs if isinstance(s, KeyDraw)
        ]
        self.traced, self._sources = _add_inputs(traced, sources, recording)
        host_results: list[DeferredValue] = [
            leaf.pending
            for leaf in nest.flatten(traced.structure)
            if isinstance(leaf, PendingHostResult)
        ]
        sources = [*self._sources, *(p.source for p in host_results)]
        self._stages = find_stages(sources, recording.sources)
        calls = self._stages[-1].list_other_calls(sources)
        self.loads = any(call.batch is None for call in calls)
        specs = [v.spec for call in calls for v in call.args if isinstance(v, DeferredValue)]
        specs += [value.spec for value in host_results]
        specs += [spec for stage in self._stages for spec in stage.input_specs]
        self.holds_lock = not any(
            spec.shape.rank is None or spec.shape.rank > 2 for spec in specs
        ) and not any(call.function is read_file for call in calls)
        self._partition_results()
        # The last leaves of all elements.
        self._bound: list[Any] = []

    def bind(self, values: list[np.ndarray]) -> HostPlan:
        """Return the plan for elements without the last leaves.

        Args:
          values: These leaves, equal for all elements.
        """
        bound = copy.copy(self)
        bound._bound = values
        return bound

    @property
    def group_size(self) -> int:
        """Return how many elements should be computed together."""
        return _IMAGES_PER_GROUP if self.loads else _RECORDS_PER_GROUP

    @property
    def description(self) -> str:
        """Return the description that `explain` shows."""
        if self._images:
            return "it loads images, in groups"
        return "it calls Python, in groups" if self.loads else "it parses strings"

    @property
    def vectorizes(self) -> bool:
        """Return whether the plan can compute many elements at once, in any order."""
        return (
            not self.draws
            and not self.loads
            and all(spec.shape.is_fully_defined() for spec in nest.flatten(self.spec))
        )

    def _partition_results(self) -> None:
        """Partition the results into loaded images, other affine maps, and results of the program."""
        traced, jaxpr = self.traced, self.traced.closed_jaxpr.jaxpr
        affine_maps = affine.find_affine_maps(traced, mirrors=True)
        self._images: dict[int, _LoadedImage] = {}
        self._affine_maps: dict[int, affine.AffineMap] = {}
        used_leaves = [None if m is None else m.leaf for m in affine_maps]
        image_variables: list[Var] = []
        others = [i for i, m in enumerate(affine_maps) if m is None]
        used_by_program = set(affine.find_used_arguments(traced, others))
        for i, affine_map in enumerate(affine_maps):
            if affine_map is None:
                continue
            loader = image_loading.find_image_loader(self._sources[affine_map.leaf])
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
                self._images[i] = _LoadedImage(loader, affine_map, indices)
            elif affine_map.is_constant:
                self._affine_maps[i] = affine_map
        self._program_results = [
            i for i in range(traced.num_results) if i not in {**self._images, **self._affine_maps}
        ]
        outputs = [*image_variables, *(jaxpr.outvars[i] for i in self._program_results)]
        self._num_image_variables = len(image_variables)
        closed = traced.closed_jaxpr
        part = jaxpr.replace(outvars=outputs, debug_info=jaxpr.debug_info.with_unknown_names())
        self._program: Any = None
        # By number of elements, the program for the interpreter and the compiled one.
        self._programs: dict[int, tuple[InterpretedProgram, Callable[..., Any]]] = {}
        # Several threads may compute groups.
        self._program_lock = threading.Lock()
        self._used_arguments: list[int] = []
        if outputs:
            _, read = select_needed_equations(part, outputs)
            arguments = part.invars[: len(self._sources)]
            self._used_arguments = [i for i, v in enumerate(arguments) if v in read]
            run = make_row_function(jex_core.ClosedJaxpr(part, closed.consts))
            in_avals = closed.in_avals[: len(self._sources)]

            def compute(_: np.ndarray, inputs: list[Any], captures: list[Any]) -> list[Any]:
                used = dict(zip(self._used_arguments, inputs, strict=True))
                full = [used.get(i, np.zeros(a.shape, a.dtype)) for i, a in enumerate(in_avals)]
                return run(*full, *captures)

            self._program = jax.vmap(compute, in_axes=(0, 0, None))

    def choose_block_length(self, batch_size: int) -> int:
        """Return how many elements have their results in one block of memory.

        Args:
          batch_size: Batch size of the consumer.
        """
        num_bytes = sum(a.size * a.dtype.itemsize for a in self.traced.closed_jaxpr.out_avals)
        return batch_size if batch_size * num_bytes <= _MAX_BLOCK_BYTES else 1

    def allocate_blocks(self, count: int) -> list[np.ndarray]:
        """Allocate memory for the results of consecutive elements, one block for each result."""
        specs = self.traced.out_specs
        return [transfers.allocate((count, *s.shape.as_list()), s.dtype.dtype) for s in specs]

    def compute_stacked(self, columns: list[Any]) -> list[np.ndarray]:
        """Compute the results of stacked leaves, stacked; only if the plan `vectorizes`."""
        count = len(columns[0])
        leaves = [
            [*map(structure.item_to_array, row), *self._bound] for row in zip(*columns, strict=True)
        ]
        group = _ElementGroup(leaves, np.zeros((count, 0, 3), np.int64))
        blocks = self.allocate_blocks(count)
        with host_scope(), cpu_scope():
            self._fill_slots(group, split_blocks(blocks, count))
            return [
                blocks[leaf.index]
                if isinstance(leaf, TensorSlot)
                else _stack_column(group.get_column(leaf.pending.source, self._stand_ins))
                for leaf in nest.flatten(self._structure)
            ]

    def compute_elements(
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
        with host_scope(), cpu_scope():
            if self._bound:
                leaves = [[*row, *self._bound] for row in leaves]
            group = _ElementGroup(leaves, keys)
            self._fill_slots(group, slots)
            return [self._rebuild_element(group, row, n) for n, row in enumerate(slots)]

    def _fill_slots(self, group: _ElementGroup, slots: list[list[Any]]) -> None:
        """Compute the numeric results of static shape of a group."""
        for stage in self._stages:
            group.run_numeric_calls(stage, self._stand_ins)
        column = lambda source: group.get_column(source, self._stand_ins)
        stacked: dict[int, np.ndarray] = {}

        def get_leaf(index: int) -> np.ndarray:
            if index not in stacked:
                loader = image_loading.find_image_loader(self._sources[index])
                if loader is None:
                    stacked[index] = _stack_column(column(self._sources[index]))
                else:
                    aval = self.traced.closed_jaxpr.in_avals[index]
                    block = transfers.allocate((len(group), *aval.shape), aval.dtype)
                    image = _LoadedImage(loader, affine.AffineMap(index, None, None), {})
                    self._load_images(group, image, [], list(block))
                    stacked[index] = block
            return stacked[index]

        computed: list[np.ndarray] = []
        if self._program is not None:
            captures = self.traced.get_captured_arrays()
            count = len(group)
            # The program is compiled for groups of the largest size, and for larger chunks.
            size = max(self.group_size, 1 << (count - 1).bit_length())
            inputs = [_pad_rows(get_leaf(i), size) for i in self._used_arguments]
            # `vmap` needs at least one argument with a batch axis.
            batch_axis = _pad_rows(np.zeros(count, np.uint8), size)
            results = self._run_program(batch_axis, inputs, captures)
            computed = [np.asarray(r)[:count] for r in results]
        for i, image in self._images.items():
            self._load_images(group, image, computed, [row[i][0] for row in slots])
        values = {
            i: LeafGather(get_leaf(m.leaf), m.steps, m.shape).gather_all()
            for i, m in self._affine_maps.items()
        }
        values |= dict(
            zip(self._program_results, computed[self._num_image_variables :], strict=True)
        )
        for i, value in values.items():
            for row, item in zip(slots, value, strict=True):
                row[i][0] = item

    def _run_program(self, *arguments: Any) -> Sequence[Any]:
        """Run the program of numeric values.

        Strings and images take much longer than a short program, which therefore need not be compiled.
        """
        operands = nest.flatten(list(arguments))
        size = len(arguments[0])
        with self._program_lock:
            if size not in self._programs:
                closed = jax.make_jaxpr(self._program)(*arguments)
                run = compile_for_cpu(jex_core.jaxpr_as_fun(closed))
                self._programs[size] = InterpretedProgram(closed), run
            interpreted, compiled = self._programs[size]
            if is_interpreter_enabled() and interpreted.estimate_limit(operands) >= _MIN_RUNS:
                return interpreted.run_on_host(operands)
        results: Sequence[Any] = compiled(*operands)
        return results

    def _load_images(
        self,
        group: _ElementGroup,
        image: _LoadedImage,
        computed: list[np.ndarray],
        out: list[np.ndarray],
    ) -> None:
        """Load the images of a group into their slots; compute failed ones step by step."""
        texts = group.get_strings(image.loader.text, self._stand_ins)
        get_values = lambda variable: computed[image.variable_indices[variable]].reshape(len(group))
        windows, affine_map = _compute_windows(image, len(group), get_values), image.affine_map
        steps = _compute_steps(affine_map.steps or (), len(group), get_values)
        mirrored = np.zeros(len(group), np.uint8)
        for axis, variable in affine_map.mirrors:
            mirrored |= get_values(variable).astype(np.uint8) * np.uint8(_AXES[axis])
        failed = images.load_images(texts, image.loader.options, windows, steps, mirrored, out)
        for i in np.flatnonzero(failed):
            single = _ElementGroup([group.leaves[i]], group.keys[i : i + 1])
            resized = single.get_column(self._sources[affine_map.leaf], self._stand_ins)[0]
            top, left, height, width = windows[i]
            out[i][...] = resized[top : top + height, left : left + width]
            row_gather.apply_steps(out[i].reshape(1, -1), steps[i])
            axes = [axis for axis, bit in _AXES.items() if mirrored[i] & bit]
            if axes:
                out[i][...] = np.flip(out[i], tuple(axes)).copy()

    def _rebuild_element(self, group: _ElementGroup, slots: list[Any], index: int) -> PyTree:
        """Return the result for an element of the group in its structure."""

        def leaf(value: Any) -> Any:
            if isinstance(value, TensorSlot):
                return slots[value.index][0, ...]
            if isinstance(value, PendingHostResult):
                column = group.get_column(value.pending.source, self._stand_ins)
                return structure.item_to_array(column[index])
            return structure.to_array(value)

        return structure.map_leaves(self._structure, leaf)


def _compute_windows(
    image: _LoadedImage, count: int, get_values: Callable[[Any], np.ndarray]
) -> np.ndarray:
    """Return the crops of the resized images: top, left, height and width of each."""
    loading, size = image.loader.options, image.size
    windows = np.tile(np.array([0, 0, *size], np.int64), (count, 1))
    if image.affine_map.window is not None:
        sizes = (loading.height, loading.width)
        for axis, (variable, full_size) in enumerate(
            zip(image.affine_map.window[1], sizes, strict=True)
        ):
            # XLA clamps the start of a dynamic slice in the same way.
            windows[:, axis] = np.clip(get_values(variable), 0, full_size - size[axis])
    return windows


def _compute_steps(
    steps: Sequence[Any], count: int, get_values: Callable[[Any], np.ndarray]
) -> list[Sequence[row_gather.RowStep]]:
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
            else row_gather.RowStep(step.operation, column[i : i + 1].reshape(()))
            for step, column in zip(steps, columns, strict=True)
        ]
        for i in range(count)
    ]


def split_blocks(blocks: list[np.ndarray], count: int) -> list[list[np.ndarray]]:
    """Return the slots of each element: its rows of the blocks, each of length 1."""
    return [[block[i : i + 1] for block in blocks] for i in range(count)]


def _add_inputs(
    traced: TracedFunction, sources: list[Any], recording: HostCallRecording
) -> tuple[TracedFunction, list[Any]]:
    """Turn the placeholders among the captures of a program into arguments.

    Returns:
      The program, and the sources of all its arguments.
    """
    closed, captures = traced.closed_jaxpr, traced.captures
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
    program = TracedFunction(
        traced.name,
        jex_core.ClosedJaxpr(jaxpr, closed.consts),
        [captures[i] for i in other_indices],
        traced.writes,
        traced.structure,
        traced.num_results,
    )
    return program, [*sources, *(placeholders[id(captures[i])] for i in input_indices)]


def _stack_column(column: np.ndarray | list[Any]) -> np.ndarray:
    if isinstance(column, np.ndarray):
        return column
    return np.stack([structure.item_to_array(value) for value in column])


def _pad_rows(array: np.ndarray, size: int) -> np.ndarray:
    """Repeat the last row of an array up to a number of rows."""
    missing = size - len(array)
    return np.concatenate([array, array[-1:].repeat(missing, 0)]) if missing > 0 else array
