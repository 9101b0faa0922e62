"""Symbolic sizes of programs: their values, given the shapes of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from jax.export import is_symbolic_dim

from meshflow.environment.jax_internals import compile_sizes, evaluate_size, list_dimensions
from meshflow.environment.types import PyTree


class Symbol:
    """A symbolic size of a program; it differs from every integer.

    Attributes:
      index: Its index among the symbolic sizes of the program.
    """

    def __init__(self, index: int) -> None:
        self.index = index


# The value of a size that depends on values which the program has not computed yet.
UNBOUND = -(1 << 62)


class SizeGuardError(Exception):
    """A program cannot run with the sizes that it computed.

    Attributes:
      sizes: The known sizes by name, if a trace with other decisions is valid for them; else empty.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        super().__init__(f"the program was not traced for the sizes {dict(sizes)}")
        self.sizes = dict(sizes)


# A shape with symbols.
SymbolicShape: TypeAlias = tuple[int | Symbol, ...]


class Symbols:
    """The distinct symbolic sizes of a program.

    Attributes:
      expressions: The sizes.
    """

    def __init__(self) -> None:
        self.expressions: list[Any] = []
        # For each size, the name of the dimension if it is one, otherwise an empty string.
        self._names: list[str] = []
        self._indices: dict[Any, Symbol] = {}
        self._shapes: dict[tuple[Any, ...], SymbolicShape] = {}
        # Functions that evaluate all sizes, by the known dimensions and the number of sizes.
        self._functions: dict[tuple[tuple[str, ...], int], Callable[..., tuple[int, ...]]] = {}
        # Checks of the comparisons of sizes, by the known dimensions and the number of earlier ones.
        self._guards: dict[tuple[tuple[str, ...], int], Callable[..., bool]] = {}

    def intern(self, size: Any) -> int | Symbol:
        """Return an integer size, or the symbol of a symbolic one."""
        if not is_symbolic_dim(size):
            return int(size)
        symbol = self._indices.get(size)
        if symbol is None:
            symbol = self._indices[size] = Symbol(len(self.expressions))
            self.expressions.append(size)
            self._names.append(find_dimension(size))
        return symbol

    def intern_shape(self, shape: tuple[Any, ...]) -> SymbolicShape:
        """Return a shape with the symbols of its symbolic sizes."""
        found = self._shapes.get(shape)
        if found is None:
            found = self._shapes[shape] = tuple(map(self.intern, shape))
        return found

    def intern_all(self, value: PyTree) -> PyTree:
        """Return nested tuples and lists with the symbols of their symbolic sizes."""
        if isinstance(value, (tuple, list)):
            return _rebuild(value, map(self.intern_all, value))
        return self.intern(value) if is_symbolic_dim(value) else value

    def replace(self, value: PyTree, sizes: Sequence[int]) -> PyTree:
        """Replace the symbols in nested tuples and lists by their values."""
        if isinstance(value, (tuple, list)):
            return _rebuild(value, [self.replace(item, sizes) for item in value])
        return sizes[value.index] if type(value) is Symbol else value

    def bind_shape(self, shape: SymbolicShape, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return a shape with the values of its symbols.

        Raises:
          ValueError: If a size is negative.
        """
        bound: tuple[int, ...] = tuple(
            [sizes[n.index] if type(n) is Symbol else n for n in shape]  # type: ignore[misc]
        )
        if bound and UNBOUND < min(bound) < 0:
            raise ValueError(f"a size of the shape {bound} is negative")
        return bound

    def evaluate(self, dims: Mapping[str, int]) -> Sequence[int]:
        """Return the values of all sizes, given those of the dimensions by name.

        A size that depends on further dimensions is `UNBOUND`.
        """
        key = tuple(dims), len(self.expressions)
        function = self._functions.get(key)
        if function is None:
            known = [e if dims.keys() >= list_dimensions(e) else UNBOUND for e in self.expressions]
            text = "".join([f"{e}, " for e in known])
            function = self._functions[key] = compile_sizes(f"({text})", key[0])
        return function(*dims.values())

    def is_open(self, shape: SymbolicShape, sizes: Sequence[int]) -> bool:
        """Check whether a size of a shape is `UNBOUND`."""
        return any([type(n) is Symbol and sizes[n.index] == UNBOUND for n in shape])

    def solve(
        self,
        shapes: Iterable[tuple[SymbolicShape, Sequence[int]]],
        dims: Mapping[str, int],
    ) -> dict[str, int]:
        """Return the values of the dimensions by name, given those of some of them and shapes of values.

        Args:
          shapes: Pairs of a shape with symbols and the same shape without.
          dims: Dimensions that are known.

        Raises:
          SizeGuardError: If the program is not valid for these sizes.
        """
        solved, pairs = dict(dims), []
        for pattern, shape in shapes:
            for n, size in zip(pattern, shape, strict=True):
                if not isinstance(n, Symbol):
                    continue
                name = self._names[n.index]
                if not name or solved.setdefault(name, size) != size:
                    pairs.append((self.expressions[n.index], size))
        if pairs:
            solved = solve_sizes(pairs, solved)
        if len(solved) == len(dims):
            return solved
        key = tuple(solved), len(dims)
        check = self._guards.get(key)
        if check is None:
            decisions = getattr(self.expressions[0].scope, "decisions", None)
            new_names = [name for name in solved if name not in dims]
            check = decisions.compile(tuple(solved), new_names) if decisions else lambda *_: True
            self._guards[key] = check
        if not check(*solved.values()):
            raise SizeGuardError(solved)
        return solved


def has_symbols(*shapes: Sequence[Any]) -> bool:
    """Check whether a shape contains a symbol."""
    return any([type(n) is Symbol for shape in shapes for n in shape])


def _rebuild(value: PyTree, items: Iterable[PyTree]) -> PyTree:
    return getattr(value, "_make", type(value))(items)


def has_symbolic_size(value: PyTree) -> bool:
    """Check whether nested tuples and lists contain a symbolic size."""
    if isinstance(value, (tuple, list)):
        return any(map(has_symbolic_size, value))
    return is_symbolic_dim(value)


class InputSizes:
    """The axes of symbolic size of a program's inputs.

    Args:
      shapes: Shapes of the inputs.
    """

    def __init__(self, shapes: Sequence[Sequence[Any]]) -> None:
        axes = [(i, k, n) for i, s in enumerate(shapes) for k, n in enumerate(s)]
        self._axes = [axis for axis in axes if is_symbolic_dim(axis[2])]
        self._names = [find_dimension(size) for _, _, size in self._axes]
        self.is_static = not self._axes

    def read(self, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Return the sizes of the axes in the shapes of concrete inputs."""
        return tuple([shapes[i][axis] for i, axis, _ in self._axes])

    def solve(self, sizes: Sequence[int]) -> dict[str, int]:
        """Return the values of the dimensions by name, given the sizes of the axes.

        Raises:
          ValueError: If no size determines a dimension, or the sizes contradict each other.
        """
        dims: dict[str, int] = {}
        pairs = [
            (axis[2], size)
            for axis, name, size in zip(self._axes, self._names, sizes, strict=True)
            if not name or dims.setdefault(name, size) != size
        ]
        return solve_sizes(pairs, dims) if pairs else dims


def find_dimension(size: object) -> str:
    """Return the name of a symbolic size that is a dimension, otherwise an empty string."""
    name = str(size)
    return name if name in list_dimensions(size) else ""


def solve_sizes(pairs: Sequence[tuple[Any, int]], known: Mapping[str, int]) -> dict[str, int]:
    """Return the values of dimensions by name, given the values of expressions.

    Args:
      pairs: Expressions and their values.
      known: Dimensions that are known, which precede the others in the result.

    Raises:
      ValueError: If no expression determines a dimension, or the values contradict each other.
    """
    dims = dict(known)
    pending = list(pairs)
    while pending:
        count, remaining = len(dims), []
        for expression, size in pending:
            unknown = [name for name in list_dimensions(expression) if name not in dims]
            if len(unknown) == 1:
                dims.update(_solve_linear(expression, size, dims, unknown[0]))
            if len(unknown) > 1 or (unknown and unknown[0] not in dims):
                remaining.append((expression, size))
            elif evaluate_size(expression, dims) != size:
                raise ValueError(f"expected an axis of size {expression} for {dims}, got {size}")
        if remaining and len(dims) == count:
            raise ValueError(f"the sizes {[str(e) for e, _ in remaining]} determine no dimension")
        pending = remaining
    return dims


def _solve_linear(expression: object, size: int, dims: dict[str, int], name: str) -> dict[str, int]:
    """Solve an expression that is linear in one dimension; return nothing if it does not depend on it."""
    first, second = (evaluate_size(expression, {**dims, name: n}) for n in (1, 2))
    return {name: 1 + (size - first) // (second - first)} if second != first else {}
