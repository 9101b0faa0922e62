"""Functions of inner datasets, traced once for all elements of `flat_map` and `interleave`.

`flat_map(lambda n: Dataset.range(n).map(lambda m: m * n))` calls `map` with a new function for each
element. These functions have the same code and differ in the tensors of their closures. A template is
traced with these tensors as arguments, so that later functions with this code need no trace and no compilation.
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.core.autograph.conversion import convert_callable
from meshflow.core.values import dtypes, nest
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.data.execution import chunks
from meshflow.data.execution.function_effects import are_states_equal, get_random_states
from meshflow.data.execution.map_function import ElementFunction
from meshflow.data.execution.random_maps import RandomStates
from meshflow.environment.types import PyTree

# Functions of more different codes or closures than this are not cached.
_MAX_TEMPLATES = 32


class _ClosureValues(NamedTuple):
    """The values of a function's closure and default arguments.

    Attributes:
      values: The values; each is a nested structure of tensors, or any other object.
      are_tensors: Whether a value is a structure of tensors.
      num_cells: Number of values in the closure; the others are default arguments.
    """

    values: list[Any]
    are_tensors: list[bool]
    num_cells: int

    def select_values(self, are_tensors: bool) -> list[Any]:
        """Return the values that are structures of tensors, or the others."""
        pairs = zip(self.values, self.are_tensors, strict=True)
        return [value for value, is_tensor in pairs if is_tensor == are_tensors]

    @property
    def tensors(self) -> list[Tensor]:
        """Return the tensors of all values."""
        return list(nest.flatten(self.select_values(True)))

    def make_key(self) -> Hashable:
        """Return a key that is equal for closures with tensors of the same specs and the same other objects."""
        return tuple(
            str(nest.map_structure(TensorSpec.from_tensor, value)) if is_tensor else id(value)
            for value, is_tensor in zip(self.values, self.are_tensors, strict=True)
        )

    def replace_tensors(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Return the values with other tensors."""
        replaced = iter(nest.pack_sequence_as(self.select_values(True), list(tensors)))
        return [
            next(replaced) if t else v for v, t in zip(self.values, self.are_tensors, strict=True)
        ]


def _is_known_number(value: object) -> bool:
    return (
        type(value) is Tensor
        and not isinstance(value.array, jax.core.Tracer)
        and value.dtype is not dtypes.string
    )


def _read_closure(fn: types.FunctionType) -> _ClosureValues | None:
    """Return the closure of a function, None if it is incomplete."""
    try:
        cells = [cell.cell_contents for cell in fn.__closure__ or ()]
    except ValueError:
        return None
    values = [*cells, *(fn.__defaults__ or ())]
    are_tensors = [
        isinstance(v, (Tensor, tuple, list, dict))
        and bool(nest.flatten(v))
        and all(map(_is_known_number, nest.flatten(v)))
        for v in values
    ]
    return _ClosureValues(values, are_tensors, len(cells))


# Values of these types hold no tensors.
_PLAIN_TYPES = (int, float, complex, str, bytes, type(None), np.ndarray, np.generic, np.ufunc)


def _holds_tensors(value: object, visited: set[int]) -> bool:
    """Check whether a function that reads a value may find a tensor in it, for example in an attribute.

    Args:
      value: The value.
      visited: Identities of the functions that were checked; it is extended.
    """
    if isinstance(value, (*_PLAIN_TYPES, types.ModuleType, types.BuiltinFunctionType)):
        return False
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list, set, frozenset)):
        return any(_holds_tensors(v, visited) for v in value)
    if isinstance(value, types.FunctionType) and value.__module__.partition(".")[0] != "meshflow":
        return _reads_tensors(value, visited)
    kind = value if isinstance(value, type) else type(value)
    is_ours = kind.__module__.partition(".")[0] in ("meshflow", "builtins")
    return isinstance(value, (Tensor, types.MethodType)) or not is_ours


def _list_names(code: types.CodeType) -> Iterator[str]:
    """Iterate over the names of globals and attributes in a function and its inner functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _list_names(constant)


def _reads_tensors(
    fn: types.FunctionType, visited: set[int], closure: Sequence[object] | None = None
) -> bool:
    """Check whether a function may read tensors that are not its arguments.

    Args:
      fn: The function.
      visited: As in `_holds_tensors`.
      closure: Values to check in place of those of its closure and default arguments.
    """
    if id(fn) in visited:
        return False
    visited.add(id(fn))
    if closure is None:
        found = _read_closure(fn)
        if found is None:
            return True
        closure = found.values
    names = [name for name in _list_names(fn.__code__) if name in fn.__globals__]
    values = [*closure, *(fn.__kwdefaults__ or {}).values(), *map(fn.__globals__.get, names)]
    return any(_holds_tensors(v, visited) for v in values)


def _rebuild_function(fn: types.FunctionType, values: Sequence[Any], num_cells: int) -> Any:
    """Return a function with other values in its closure and default arguments."""
    rebuilt = types.FunctionType(
        fn.__code__,
        fn.__globals__,
        fn.__name__,
        tuple(values[num_cells:]) or None,
        tuple(map(types.CellType, values[:num_cells])),
    )
    rebuilt.__module__, rebuilt.__qualname__ = fn.__module__, fn.__qualname__
    return rebuilt


class BoundFunction(ElementFunction):
    """A template with values for the tensors of a closure, for many elements at once.

    Args:
      template: The function of an element and the tensors.
      fn: The user's function.
      spec: Spec of the elements.
      tensors: The tensors.
    """

    def __init__(
        self, template: ElementFunction, fn: Any, spec: PyTree, tensors: Sequence[Tensor]
    ) -> None:
        # The attributes of the base class that depend on a trace are those of the template.
        self.__dict__.update(template.__dict__)
        self.affine_maps = self.rows = None
        self.python_function, self._spec = fn, spec
        self._template, self._values = template, [np.asarray(t.array) for t in tensors]
        self.plan = None if template.plan is None else template.plan.bind(self._values)

    def infer_result_spec(self, spec: PyTree) -> PyTree:
        """Return the spec of the results if it is known for elements of this spec, else None."""
        return self._output_spec if spec == self._spec else None

    def __call__(self, element: PyTree, random_states: RandomStates | None = None) -> PyTree:
        """Compute the result for one element, a structure of host arrays."""
        return self._template((element, *self._values), random_states)

    def compute_equal(self, elements: list[PyTree]) -> list[PyTree]:
        """Compute the results for elements of equal shapes."""
        return self._template.compute_equal([(element, *self._values) for element in elements])

    def compute_many(self, leaves: list[Any]) -> list[Any]:
        """Compute the stacked results for stacked elements."""
        count = chunks.count_elements(leaves)
        return self._template.compute_many(
            [*leaves, *[np.broadcast_to(a, (count, *a.shape)) for a in self._values]]
        )


class FunctionTemplates:
    """The templates of the functions that a function of elements passes to transformations."""

    def __init__(self) -> None:
        # With each template its function, which keeps the objects alive that the key identifies.
        self._templates: dict[Hashable, tuple[ElementFunction | None, Any]] = {}

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Use the templates for functions that this thread passes to transformations."""
        saved, _active.templates = _active.templates, self
        try:
            yield
        finally:
            _active.templates = saved

    def bind(self, fn: Callable[..., Any], spec: PyTree, caller: str) -> ElementFunction | None:
        """Return a function by a template; None if the function cannot use one."""
        if not isinstance(fn, types.FunctionType) or fn.__kwdefaults__:
            return None
        closure = _read_closure(fn)
        if closure is None or not nest.flatten(spec):
            return None
        if _reads_tensors(fn, set(), closure.select_values(False)):
            # These tensors may be others for each element.
            return None
        key = fn.__code__, id(fn.__globals__), caller, str(spec), closure.make_key()
        found = self._templates.get(key)
        if found is None:
            if len(self._templates) >= _MAX_TEMPLATES:
                return None
            found = self._templates[key] = _create_template(fn, spec, caller, closure), fn
        template = found[0]
        return None if template is None else BoundFunction(template, fn, spec, closure.tensors)


def _create_template(
    fn: Any, spec: PyTree, caller: str, closure: _ClosureValues
) -> ElementFunction | None:
    """Create the function of an element and the tensors of a closure; return None if it has to run for each element."""

    def call(element: PyTree, *tensors: Tensor) -> PyTree:
        rebuilt = _rebuild_function(fn, closure.replace_tensors(tensors), closure.num_cells)
        converted = convert_callable(rebuilt)
        return converted(*element) if type(spec) is tuple else converted(element)

    states = get_random_states()
    tensor_specs = [TensorSpec(t.shape, t.dtype) for t in closure.tensors]
    try:
        template = ElementFunction(call, (spec, *tensor_specs), caller)
    except Exception:
        # The function is passed to the transformation as it is, which raises the error.
        return None
    # The other forms of execution hold the specs of the template's elements.
    is_simple = not (template.runs_eagerly or template.segments or template.checked)
    is_valid = template.is_pure and (template.plan is not None or is_simple)
    return template if is_valid and are_states_equal(states, get_random_states()) else None


class _ActiveTemplates(threading.local):
    templates: FunctionTemplates | None = None


_active = _ActiveTemplates()


def get_templates() -> FunctionTemplates:
    """Return the templates that this thread uses, or new ones."""
    return _active.templates or FunctionTemplates()


def create_function(fn: Callable[..., Any], spec: PyTree, caller: str) -> ElementFunction:
    """Create the function of a transformation, by a template where one is in use.

    Args:
      fn: The user's function.
      spec: Spec of the elements.
      caller: Name of the transformation, for errors.
    """
    templates = _active.templates
    bound = None if templates is None else templates.bind(fn, spec, caller)
    return ElementFunction(fn, spec, caller) if bound is None else bound
