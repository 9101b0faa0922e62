"""Recognition of the equations of attention and its gradient in a program."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.environment.types import Atom, Jaxpr, JaxprEqn, Literal, Var
from meshflow.kernels import attention
from meshflow.kernels.library import Aval
from meshflow.passes.attention_terms import (
    CONSTANT,
    EXPONENTIAL,
    ONE,
    RETAINED,
    VISIBLE,
    Matrix,
    NotAttentionError,
    Polynomial,
    Product,
    ScoreValue,
    Term,
    add_polynomials,
    multiply_polynomials,
    raise_to_power,
    require,
    sum_over_keys,
)
from meshflow.passes.jaxprs import get_aval, map_consumers, map_producers

# Name of the call that draws the random numbers of dropout.
RANDOM_CALL = "philox_uniform"


def is_long(shape: tuple[Any, ...]) -> bool:
    """Check whether scores of this shape are those of attention to a long sequence."""
    is_static = len(shape) in (2, 3, 4) and all(isinstance(n, int) for n in shape)
    return is_static and attention.are_long(*shape[-2:])


def _is_scalar(atom: Atom) -> bool:
    return isinstance(atom, Literal) and np.ndim(atom.val) == 0


# Equations with a result that equals their operand, except for rounding.
_PASSED = frozenset(["convert_element_type", "stop_gradient", "copy", "optimization_barrier"])


class AttentionMatch:
    """The equations of one attention and its gradient.

    Args:
      jaxpr: The jaxpr; its outputs count as reads.
      eqns: Its equations without calls.
      exponential: The equation of the exponentials of the scores.

    Attributes:
      eqns: The equations.
      replaced: Indices of those that `kernels.attention` replaces.
      rank: Rank of the scores.
      shape: Shape of the scores.
      scale: Factor of the scores.
      fill: Score of a hidden key.
      biases: Biases, with the axes of the scores that correspond to theirs.
      masks: Masks, with such axes, and whether True hides a key.
      noise: Key, rate and dtype of dropout, or None.
      matrices: Operands by name: "query", "key", "value", "gradient".
      products: Products with the matrices.

    Raises:
      MismatchError: If they are not attention, or other equations read the scores.
    """

    def __init__(self, jaxpr: Jaxpr, eqns: list[JaxprEqn], exponential: JaxprEqn) -> None:
        self.eqns = eqns
        self._producers, self._consumers = map_producers(eqns), map_consumers(jaxpr, eqns)
        self._indices = {id(eqn): i for i, eqn in enumerate(eqns)}
        self._exponential = exponential
        shape = get_aval(exponential.outvars[0]).shape
        require(is_long(shape))
        self.rank = len(shape)
        self.shape = shape
        # Axes of the scores; those with one element have no identity.
        self._axes = tuple(CONSTANT if n == 1 else i for i, n in enumerate(shape))
        self._batch_axes = [a for a in self._axes[:-2] if a != CONSTANT]
        # Indices of the equations that the primitives replace.
        self.replaced: set[int] = set()
        self._values: dict[Var, ScoreValue] = {}
        self.products: list[Product] = []
        self.scale, self.fill = 1.0, 0.0
        # Biases and masks, with their axes; of a mask also whether it is True for hidden scores.
        self.biases: list[tuple[Var, tuple[int, ...]]] = []
        self.masks: list[tuple[Var, tuple[int, ...], bool]] = []
        self.noise: tuple[Atom, float, str] | None = None
        self.matrices: dict[str, Matrix] = {}
        # Gradients of values that are multiplied by the values, maybe those of another attention.
        self._gradients: list[Matrix] = []

        self._match()

    def _match(self) -> None:
        self._match_scores()
        start = self._indices[id(self._exponential)]
        self._values[self._exponential.outvars[0]] = ScoreValue(self._axes, {EXPONENTIAL: 1.0})
        for i in range(start + 1, len(self.eqns)):
            try:
                self._interpret(i)
            except NotAttentionError:
                # The equation is not replaced. If it reads the scores, these are still needed.
                continue
        require(any(p.kind == "values" for p in self.products))
        self._check_readers()

    def _produce(self, atom: Atom) -> JaxprEqn:
        eqn = None if isinstance(atom, Literal) else self._producers.get(atom)
        if eqn is None:
            raise NotAttentionError
        return eqn

    def _match_scores(self) -> None:
        """Match the equations from the product of queries and keys to the exponentials."""
        shifted = self._skip(self._exponential.invars[0])
        difference = self._produce(shifted)
        require(difference.primitive.name == "sub")
        self._mark(difference)
        scores, shift = difference.invars
        while (eqn := self._produce(shift)).primitive.name != "reduce_max":
            self._mark(eqn)
            passed = {"reshape", "broadcast_in_dim", "squeeze", "expand_dims", *_PASSED}
            is_maximum = eqn.primitive.name == "max"
            require(eqn.primitive.name in passed or is_maximum)
            variables = [a for a in eqn.invars if not isinstance(a, Literal)]
            require(len(variables) == 1)
            shift = variables[0]
        self._mark(eqn)
        require(eqn.params["axes"] == (self.rank - 1,))
        require(self._skip(eqn.invars[0]) is self._skip(scores))
        self._match_chain(scores)

    def _mark(self, eqn: JaxprEqn) -> None:
        self.replaced.add(self._indices[id(eqn)])

    def _skip(self, atom: Atom) -> Atom:
        """Skip equations that only round a value."""
        while not isinstance(atom, Literal) and atom in self._producers:
            eqn = self._producers[atom]
            if eqn.primitive.name not in _PASSED or len(eqn.invars) != 1:
                break
            if np.dtype(get_aval(eqn.invars[0]).dtype).kind in "biu":
                break
            if len(get_aval(atom).shape) >= 2:
                self._mark(eqn)
            atom = eqn.invars[0]
        return atom

    def _match_chain(self, scores: Atom) -> None:
        """Match scales, biases and masks backwards, from the softmax to the product."""
        axes = self._axes
        while True:
            scores = self._skip(scores)
            eqn = self._produce(scores)
            self._mark(eqn)
            name, operands = eqn.primitive.name, eqn.invars
            if name == "transpose":
                axes = self._undo_transpose(axes, eqn.params["permutation"])
                scores = operands[0]
            elif name in ("squeeze", "reshape", "broadcast_in_dim"):
                (scores,) = operands
                axes = self._move_axes(axes, get_aval(eqn.outvars[0]), get_aval(scores))
            elif name in ("mul", "div") and any(map(_is_scalar, operands)):
                scalar = next(a for a in operands if _is_scalar(a))
                require(name == "mul" or scalar is operands[1])
                factor = float(scalar.val)  # type: ignore[union-attr]
                require(factor)
                self.scale *= factor if name == "mul" else 1 / factor
                scores = operands[0] if scalar is operands[1] else operands[1]
            elif name in ("add", "select_n"):
                require(self.scale == 1)
                scores = (self._match_bias if name == "add" else self._match_mask)(eqn, axes)
            else:
                require(name == "dot_general")
                self._match_score_product(eqn, axes)
                return

    @staticmethod
    def _undo_transpose(axes: tuple[int, ...], permutation: Sequence[int]) -> tuple[int, ...]:
        """Return the axes of the operand of a transposition, given those of its result."""
        return tuple(axes[list(permutation).index(i)] for i in range(len(axes)))

    @staticmethod
    def _move_axes(axes: tuple[int, ...], old: Aval, new: Aval) -> tuple[int, ...]:
        """Return the axes after axes of one element were inserted or removed."""
        present = iter([a for a, n in zip(axes, old.shape, strict=True) if n != 1])
        require([n for n in old.shape if n != 1] == [n for n in new.shape if n != 1])
        return tuple(CONSTANT if n == 1 else next(present) for n in new.shape)

    def _depends_on_product(self, atom: Atom) -> bool:
        """Check whether a value is computed from a product by elementwise equations of one size."""
        while not isinstance(atom, Literal) and atom in self._producers:
            eqn = self._producers[atom]
            if eqn.primitive.name == "dot_general":
                return True
            same = [
                a
                for a in eqn.invars
                if not isinstance(a, Literal)
                and get_aval(a).size == get_aval(atom).size
                and np.dtype(get_aval(a).dtype).kind == np.dtype(get_aval(atom).dtype).kind
            ]
            if not same or len(eqn.outvars) != 1:
                return False
            if len(same) > 1:
                return any(map(self._depends_on_product, same))
            (atom,) = same
        return False

    def _match_bias(self, eqn: JaxprEqn, axes: tuple[int, ...]) -> Atom:
        size = get_aval(eqn.outvars[0]).size
        full = [a for a in eqn.invars if get_aval(a).size == size and self._depends_on_product(a)]
        require(len(full) == 1)
        (bias,) = [a for a in eqn.invars if a is not full[0]]
        require(not isinstance(bias, Literal))
        self.biases.append(self._find_source(bias, axes))  # type: ignore[arg-type]
        return full[0]

    def _match_mask(self, eqn: JaxprEqn, axes: tuple[int, ...]) -> Atom:
        require(not self.biases and len(eqn.invars) == 3)
        predicate, if_false, if_true = eqn.invars
        for fill, scores, hides in ((if_false, if_true, False), (if_true, if_false, True)):
            value = self._read_constant(fill)
            if value is None or self._read_constant(scores) is not None:
                continue
            require(not self.masks or value == self.fill)
            self.fill = value
            require(not isinstance(predicate, Literal))
            self.masks.append((*self._find_source(predicate, axes), hides))  # type: ignore[arg-type]
            return scores
        raise NotAttentionError

    def _read_constant(self, atom: Atom) -> float | None:
        """Return the number of which an array consists, or None."""
        while not isinstance(atom, Literal):
            eqn = self._producers.get(atom)
            if eqn is None or eqn.primitive.name not in (
                "broadcast_in_dim",
                "convert_element_type",
            ):
                return None
            atom = eqn.invars[0]
        return float(atom.val) if np.ndim(atom.val) == 0 else None

    def _find_source(self, atom: Var, axes: tuple[int, ...]) -> tuple[Var, tuple[int, ...]]:
        """Return the variable that an operand broadcasts, and its axes."""
        shape = get_aval(atom).shape
        require(len(shape) == len(axes))
        axes = tuple(CONSTANT if n == 1 else a for n, a in zip(shape, axes, strict=True))
        eqn = self._producers.get(atom)
        if eqn is not None and eqn.primitive.name == "broadcast_in_dim":
            source = eqn.invars[0]
            if not isinstance(source, Literal):
                pairs = zip(eqn.params["broadcast_dimensions"], get_aval(source).shape, strict=True)
                return source, tuple(CONSTANT if n == 1 else axes[int(i)] for i, n in pairs)
        return atom, axes

    def _match_score_product(self, eqn: JaxprEqn, axes: tuple[int, ...]) -> None:
        self.scale = float(np.float32(self.scale))
        contract, batch = eqn.params["dimension_numbers"]
        require(len(axes) == len(batch[0]) + 2)
        for i, row in enumerate(axes[-2:]):
            matrix = self._find_matrix(eqn.invars[i], axes[:-2], batch[i], contract[i])
            self.matrices["query" if row == self.rank - 2 else "key"] = matrix
        require(set(self.matrices) == {"query", "key"})

    def _find_matrix(
        self,
        atom: Atom,
        batch_axes: Sequence[int],
        batch: Sequence[int],
        contracted: Sequence[int],
        sums_rows: bool = False,
    ) -> Matrix:
        """Describe an operand of a product.

        Args:
          atom: The operand.
          batch_axes: For each batch axis of the product, its axis of the scores.
          batch: These axes of the operand.
          contracted: Its axes that are summed.
          sums_rows: Whether these are rows instead of features.
        """
        require(sorted(a for a in batch_axes if a != CONSTANT) == self._batch_axes)
        require(len(contracted) == 1 and not isinstance(atom, Literal))
        free = set(range(get_aval(atom).ndim)) - {*batch, *contracted}
        require(len(free) == 1)
        pair = (*contracted, *free) if sums_rows else (*free, *contracted)
        positions = dict(zip(batch_axes, batch, strict=True))
        order = [*(positions[a] for a in self._batch_axes), *pair]
        while (producer := self._producers.get(atom)) is not None:
            if producer.primitive.name != "transpose":
                break
            order = [producer.params["permutation"][i] for i in order]
            (atom,) = producer.invars
        return Matrix(atom, tuple(int(i) for i in order))  # type: ignore[arg-type]

    def _interpret(self, index: int) -> None:
        """Interpret an equation after the exponentials, if it reads one of the values."""
        eqn = self.eqns[index]
        is_read = any(not isinstance(a, Literal) and a in self._values for a in eqn.invars)
        name = eqn.primitive.name
        if name == "dot_general":
            if is_read:
                self._match_product(index, eqn)
            else:
                self._match_weight_gradient(eqn)
            return
        if name == "ge" and not is_read:
            self._match_dropout(eqn)
            return
        if not is_read or len(eqn.outvars) != 1:
            return
        value = self._compute(eqn)
        if value is not None:
            self._values[eqn.outvars[0]] = value

    def _read(self, atom: Atom) -> ScoreValue | None:
        if isinstance(atom, Literal):
            if np.ndim(atom.val):
                return None
            return ScoreValue((), {ONE: float(atom.val)} if atom.val else {})
        value = self._values.get(atom)
        if value is None:
            constant = self._read_constant(atom)
            if constant is not None:
                axes = (CONSTANT,) * len(get_aval(atom).shape)
                value = ScoreValue(axes, {ONE: constant} if constant else {})
        return value

    @staticmethod
    def _merge_axes(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        if not a or not b:
            return a or b
        require(len(a) == len(b))
        merged = tuple(y if x == CONSTANT else x for x, y in zip(a, b, strict=True))
        pairs = zip(a, b, merged, strict=True)
        require(all(x in (CONSTANT, m) and y in (CONSTANT, m) for x, y, m in pairs))
        return merged

    def _compute(self, eqn: JaxprEqn) -> ScoreValue | None:
        """Return the result of an elementwise equation, sum or broadcast, or None if unknown."""
        name, params = eqn.primitive.name, eqn.params
        if name == "select_n":
            return self._select(eqn)
        operands = [self._read(a) for a in eqn.invars]
        if any(v is None for v in operands):
            return None
        values: list[ScoreValue] = operands  # type: ignore[assignment]
        axes, polynomial = values[0]
        if name in ("mul", "div", "add", "add_any", "sub"):
            axes = self._merge_axes(axes, values[1].axes)
            other = values[1].polynomial
            if name == "mul":
                return ScoreValue(axes, multiply_polynomials(polynomial, other))
            if name == "div":
                return ScoreValue(axes, multiply_polynomials(polynomial, raise_to_power(other, -1)))
            return ScoreValue(axes, add_polynomials(polynomial, other, -1 if name == "sub" else 1))
        if name == "neg":
            return ScoreValue(axes, {t: -x for t, x in polynomial.items()})
        if name == "integer_pow":
            return ScoreValue(axes, raise_to_power(polynomial, params["y"]))
        if name in _PASSED:
            require(jnp.issubdtype(get_aval(eqn.outvars[0]).dtype, np.floating))
            return values[0]
        if name == "transpose":
            return ScoreValue(tuple(axes[i] for i in params["permutation"]), polynomial)
        if name == "broadcast_in_dim":
            result = [CONSTANT] * len(params["shape"])
            for axis, i in zip(axes, params["broadcast_dimensions"], strict=True):
                result[int(i)] = axis
            return ScoreValue(tuple(result), polynomial)
        if name in ("reshape", "squeeze", "expand_dims"):
            avals = get_aval(eqn.invars[0]), get_aval(eqn.outvars[0])
            return ScoreValue(self._move_axes(axes, *avals), polynomial)
        if name == "reduce_sum":
            for i in params["axes"]:
                if axes[i] == self.rank - 1:
                    polynomial = sum_over_keys(polynomial)
                else:
                    require(get_aval(eqn.invars[0]).shape[i] == 1)
            other_axes = [a for i, a in enumerate(axes) if i not in params["axes"]]
            return ScoreValue(tuple(other_axes), polynomial)
        return None

    def _select(self, eqn: JaxprEqn) -> ScoreValue:
        """Multiply by a mask of dropout or of the scores."""
        require(len(eqn.invars) == 3)
        predicate, if_false, if_true = eqn.invars
        mask = None if isinstance(predicate, Literal) else self._values.get(predicate)
        if mask is not None:
            require(mask.polynomial == {RETAINED: 1.0} and self._read_constant(if_false) == 0)
            value = self._read(if_true)
            require(value is not None and value.axes == mask.axes)
            gate = RETAINED
        else:
            known = {id(m): hides for m, _, hides in self.masks}
            source = predicate
            if id(source) not in known and not isinstance(source, Literal):
                source = self._find_source(source, self._axes)[0]
            require(id(source) in known)
            zero, other = (if_true, if_false) if known[id(source)] else (if_false, if_true)
            require(self._read_constant(zero) == 0)
            value = self._read(other)
            gate = VISIBLE
        if value is None:
            raise NotAttentionError
        return ScoreValue(value.axes, multiply_polynomials(value.polynomial, {gate: 1.0}))

    def _match_dropout(self, eqn: JaxprEqn) -> None:
        """Match the comparison of random numbers with a rate."""
        uniform, rate = eqn.invars
        producer = None if isinstance(uniform, Literal) else self._producers.get(uniform)
        if (
            producer is None
            or str(producer.params.get("name")) != RANDOM_CALL
            or not _is_scalar(rate)
        ):
            return
        aval = get_aval(uniform)
        consumers = self._consumers.get(eqn.outvars[0], [])
        reads = [self.eqns[i] for i in consumers if i < len(self.eqns)]
        if aval.shape != self.shape or not any(self._is_related(e) for e in reads):
            return
        limit = float(rate.val)  # type: ignore[union-attr]
        require(self.noise is None and limit < 1)
        self.noise = producer.invars[0], limit, aval.dtype.name
        self._mark(producer)
        self._values[eqn.outvars[0]] = ScoreValue(self._axes, {RETAINED: 1.0})

    def _is_related(self, eqn: JaxprEqn) -> bool:
        """Check whether an equation reads a value, or a function of one that follows."""
        return any(
            not isinstance(a, Literal)
            and (a in self._values or self._reads_values(self._producers.get(a)))
            for a in eqn.invars
        )

    def _reads_values(self, eqn: JaxprEqn | None) -> bool:
        return eqn is not None and any(
            not isinstance(a, Literal) and a in self._values for a in eqn.invars
        )

    def _match_weight_gradient(self, eqn: JaxprEqn) -> None:
        """Match the product of a gradient of the values with the values."""
        if "value" not in self.matrices or get_aval(eqn.outvars[0]).size != math.prod(self.shape):
            return
        contract, batch = eqn.params["dimension_numbers"]
        sizes = [get_aval(eqn.invars[0]).shape[i] for i in batch[0]]
        for i, permuted in itertools.product(range(2), itertools.permutations(self._batch_axes)):
            rest = iter(permuted)
            batch_axes = [CONSTANT if n == 1 else next(rest, CONSTANT) for n in sizes]
            try:
                found, gradient = (
                    self._find_matrix(eqn.invars[k], batch_axes, batch[k], contract[k])
                    for k in (i, 1 - i)
                )
            except NotAttentionError:
                continue
            if found != self.matrices["value"]:
                continue
            self._gradients.append(gradient)
            change = Term(change=len(self._gradients))
            rows = [self.rank - 1, self.rank - 2] if i == 0 else [self.rank - 2, self.rank - 1]
            self._values[eqn.outvars[0]] = ScoreValue((*batch_axes, *rows), {change: 1.0})
            return

    def _match_product(self, index: int, eqn: JaxprEqn) -> None:
        """Match a product of weights or of gradients of scores with a matrix."""
        (side,) = _select_one(
            i for i, a in enumerate(eqn.invars) if not isinstance(a, Literal) and a in self._values
        )
        value = self._values[eqn.invars[side]]
        contract, batch = eqn.params["dimension_numbers"]
        require(len(contract[side]) == 1)
        summed = value.axes[contract[side][0]]
        batch_axes = [value.axes[i] for i in batch[side]]
        over_keys = summed == self.rank - 1
        require(over_keys or summed == self.rank - 2)
        other = 1 - side
        matrix = self._find_matrix(
            eqn.invars[other], batch_axes, batch[other], contract[other], sums_rows=True
        )
        kind = self._classify(value.polynomial, over_keys)
        expected = {"values": "value", "value": "gradient", "query": "key", "key": "query"}[kind]
        if kind in ("values", "value"):
            self.matrices.setdefault(expected, matrix)
        require(self.matrices[expected] == matrix)
        require(all(p.kind != kind for p in self.products))
        rows, features = self.rank - 2, self.rank - 1
        free = [rows, features] if side == 0 else [features, rows]
        self.products.append(Product(index, kind, (*batch_axes, *free)))

    def _classify(self, polynomial: Polynomial, over_keys: bool) -> str:
        """Return the kind of a product with a polynomial."""
        _, rate, noise = self.noise or (None, 0.0, "float32")
        retained, factor = int(self.noise is not None), 1 / (1 - rate)
        # A factor in bfloat16 is rounded.
        is_close = lambda a, b: math.isclose(a, b, rel_tol=1e-5 if noise == "float32" else 1e-2)
        weights = Term(exponential=1, total=-1, retained=retained)
        if set(polynomial) == {weights}:
            require(is_close(polynomial[weights], factor))
            return "values" if over_keys else "value"
        visible, terms = int(bool(self.masks)), set(polynomial)
        require(terms)
        (change, source) = max((t.change, t) for t in terms)
        inner = Term(exponential=1, change=change, retained=retained)
        slope = Term(exponential=1, total=-2, visible=visible, sums=(inner,))
        require(change and source == Term(1, -1, change, retained, visible))
        require(terms == {source, slope})
        gradient = self._gradients[change - 1]
        require(self.matrices.setdefault("gradient", gradient) == gradient)
        expected = self.scale * factor
        require(is_close(polynomial[source], expected) and is_close(polynomial[slope], -expected))
        return "query" if over_keys else "key"

    def _check_readers(self) -> None:
        """Check that no other equation reads the values that are no longer computed."""
        products = {p.eqn_index for p in self.products}
        stack = [a for i in products for a in self.eqns[i].invars]
        while stack:
            atom = stack.pop()
            if not isinstance(atom, Literal) and atom in self._values:
                eqn = self._producers[atom]
                if self._indices[id(eqn)] not in self.replaced:
                    self._mark(eqn)
                    stack += eqn.invars
        matched = set(self.replaced)
        self.replaced |= products
        for i in matched:
            for v in self.eqns[i].outvars:
                require(set(self._consumers.get(v, [])) <= self.replaced)


def _select_one(items: Iterable[Any]) -> list[Any]:
    found = list(items)
    require(len(found) == 1)
    return found
