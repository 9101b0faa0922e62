"""Order of rows in the equations of a share of a batch: whether each row of a result depends on its own row only.

The row axis of a value has outer * n * inner elements for a share of n rows: several arrays one after the other,
such as real and generated images, or several elements of each row, such as its tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from meshflow.environment.inner_jaxprs import find_inner_jaxprs, to_open_jaxpr
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Atom, Jaxpr, JaxprEqn
from meshflow.passes.jaxprs import get_aval, is_plain_call, select_variables


def makes_indices(eqn: JaxprEqn) -> bool:
    """Check whether an equation calls `philox.make_indices`, which has other equations for other rows."""
    return is_plain_call(eqn) and eqn.params.get("name") == "make_indices"


def pair_variables(jaxpr: Jaxpr, other: Jaxpr) -> dict[Any, Any]:
    """Map the variables of a program, and of the programs inside, to those of the same program for other rows."""
    pairs = dict(zip(jaxpr.invars, other.invars, strict=True))
    for a, b in zip(jaxpr.eqns, other.eqns, strict=False):
        pairs |= zip(a.outvars, b.outvars, strict=False)
        if not makes_indices(a):
            for inner in zip(find_inner_jaxprs(a), find_inner_jaxprs(b), strict=False):
                pairs |= pair_variables(*map(to_open_jaxpr, inner))
    return pairs


class RowOrder:
    """Numbers of arrays along the row axes of variables.

    Args:
      num_rows: Number of rows of the share.
      get_row_axis: Function of a variable that returns its row axis, or None; -1 if several axes have rows.
    """

    def __init__(self, num_rows: int, get_row_axis: Callable[[Atom], int | None]) -> None:
        self.num_rows, self.get_row_axis = num_rows, get_row_axis
        # None for random numbers, the order of which is that of the other operands.
        self._outer: dict[Any, int | None] = {}

    def keeps_rows(self, eqn: JaxprEqn) -> bool:
        """Check whether an equation computes each row from the same row of its operands.

        Equations are visited in their order. Reductions over rows, which have no rows, are not checked.
        """
        if any(self.get_row_axis(v) == -1 for v in eqn.outvars):
            return False
        results = [v for v in eqn.outvars if self.get_row_axis(v) is not None]
        if not results:
            return True
        operands = [v for v in eqn.invars if self.get_row_axis(v) is not None]
        if any(self.get_row_axis(v) == -1 or self._get_size(v) % self.num_rows for v in operands):
            return False
        if any(self._get_size(v) % self.num_rows for v in results):
            return False
        name = eqn.primitive.name
        if makes_indices(eqn):
            # The indices of random numbers are those of the batch.
            self._outer |= dict.fromkeys(results)
            return True
        if name == "iota":
            return eqn.params["dimension"] != self.get_row_axis(results[0])
        known = {self._outer.get(v, 1) for v in operands} - {None}
        check = getattr(self, f"_keep_{_FAMILIES.get(name, name)}", None)
        if check is not None and operands:
            outer = check(eqn, operands, results)
            if outer is None:
                return False
        elif len(known) > 1 or not self._check_inner(eqn):
            return False
        else:
            outer = next(iter(known), None)
        self._outer |= dict.fromkeys(results, outer)
        return True

    def _get_axis(self, variable: Atom) -> int:
        axis = self.get_row_axis(variable)
        assert axis is not None
        return axis

    def _get_size(self, variable: Atom) -> int:
        return get_aval(variable).shape[self._get_axis(variable)]

    def _get_outer(self, variable: Any) -> int:
        return self._outer.get(variable, 1) or 1

    def _has_inner(self, variable: Atom) -> bool:
        return self._get_size(variable) != self._get_outer(variable) * self.num_rows

    def _check_inner(self, eqn: JaxprEqn) -> bool:
        """Check the programs inside of an equation, and that a loop does not run over the rows."""
        if eqn.primitive.name == "scan":
            scanned = eqn.invars[eqn.params["num_consts"] + eqn.params["num_carry"] :]
            if any(self.get_row_axis(v) == 0 for v in scanned):
                return False
        return all(
            self._keeps_inner_rows(eqn, to_open_jaxpr(inner)) for inner in find_inner_jaxprs(eqn)
        )

    def _keeps_inner_rows(self, eqn: JaxprEqn, jaxpr: Jaxpr) -> bool:
        operands = eqn.invars[len(eqn.invars) - len(jaxpr.invars) :]
        for variable, operand in zip(jaxpr.invars, operands, strict=False):
            if not isinstance(operand, jex_core.Literal) and operand in self._outer:
                self._outer[variable] = self._outer[operand]
        sums: set[Any] = set()
        while True:
            for inner in jaxpr.eqns:
                has_rows = any(self.get_row_axis(v) is not None for v in inner.outvars)
                reads_sums = not sums.isdisjoint(select_variables(inner.invars))
                if not self.keeps_rows(inner) or (has_rows and reads_sums):
                    return False
                if reads_sums or any(self.get_row_axis(v) is not None for v in inner.invars):
                    sums.update([] if has_rows else inner.outvars)
            # Sums that a loop carries are operands of its next iteration.
            first = eqn.params.get("num_consts", 0)
            pairs = zip(jaxpr.invars[first:], jaxpr.outvars, strict=False)
            count = eqn.params["num_carry"] if eqn.primitive.name == "scan" else 0
            carried = {
                a
                for a, b in itertools.islice(pairs, count)
                if not sums.isdisjoint(select_variables([b]))
            }
            if carried <= sums:
                return True
            sums |= carried

    # Each of these methods returns the number of arrays in the results, or None if rows are mixed.

    def _keep_along_axes(
        self, eqn: JaxprEqn, operands: list[Any], results: list[Any]
    ) -> int | None:
        axes = eqn.params[_AXIS_PARAMETERS[eqn.primitive.name]]
        is_over_rows = self._get_axis(operands[0]) in (axes if isinstance(axes, tuple) else [axes])
        return None if is_over_rows else self._get_outer(operands[0])

    def _keep_window(self, eqn: JaxprEqn, operands: list[Any], results: list[Any]) -> int | None:
        sizes = eqn.params.get("window_dimensions", ())
        axis = self._get_axis(operands[0])
        return None if axis < len(sizes) and sizes[axis] != 1 else self._get_outer(operands[0])

    def _keep_conv_general_dilated(
        self, eqn: JaxprEqn, operands: list[Any], results: list[Any]
    ) -> int | None:
        numbers = eqn.params["dimension_numbers"]
        is_image = len(operands) == 1 and operands[0] is eqn.invars[0]
        is_kept = is_image and self._get_axis(operands[0]) == numbers.lhs_spec[0]
        return self._get_outer(operands[0]) if is_kept else None

    def _keep_concatenate(
        self, eqn: JaxprEqn, operands: list[Any], results: list[Any]
    ) -> int | None:
        outers = [self._get_outer(v) for v in operands]
        if self._get_axis(results[0]) != eqn.params["dimension"]:
            return outers[0] if len({*outers}) == 1 else None
        return None if any(map(self._has_inner, operands)) else sum(outers)

    def _keep_split(self, eqn: JaxprEqn, operands: list[Any], results: list[Any]) -> int | None:
        if self._get_axis(operands[0]) != eqn.params["axis"]:
            return self._get_outer(operands[0])
        sizes = {*eqn.params["sizes"]}
        if self._has_inner(operands[0]) or len(sizes) > 1:
            return None
        return next(iter(sizes)) // self.num_rows

    def _keep_slice(self, eqn: JaxprEqn, operands: list[Any], results: list[Any]) -> int | None:
        axis, size = self._get_axis(operands[0]), self._get_size(operands[0])
        start, limit = (eqn.params[k][axis] for k in ("start_indices", "limit_indices"))
        stride = 1 if eqn.params["strides"] is None else eqn.params["strides"][axis]
        if (start, limit, stride) == (0, size, 1):
            return self._get_outer(operands[0])
        if stride != 1 or start % self.num_rows or self._has_inner(operands[0]):
            return None
        return (limit - start) // self.num_rows

    def _keep_pad(self, eqn: JaxprEqn, operands: list[Any], results: list[Any]) -> int | None:
        low, high, interior = eqn.params["padding_config"][self._get_axis(results[0])]
        if (low, high, interior) == (0, 0, 0):
            return self._get_outer(operands[0])
        if interior or low % self.num_rows or self._has_inner(operands[0]):
            return None
        return self._get_size(results[0]) // self.num_rows

    def _keep_reshape(self, eqn: JaxprEqn, operands: list[Any], results: list[Any]) -> int | None:
        axis, new = self._get_axis(operands[0]), self._get_axis(results[0])
        shape, new_shape = (get_aval(v).shape for v in (operands[0], results[0]))
        blocks = math.prod(shape[:axis]) * self._get_outer(operands[0])
        outer, rest = divmod(blocks, math.prod(new_shape[:new]))
        return None if rest or not outer or new_shape[new] % (outer * self.num_rows) else outer

    def _keep_gather(self, eqn: JaxprEqn, operands: list[Any], results: list[Any]) -> int | None:
        if eqn.invars[0] in operands:
            numbers, axis = eqn.params["dimension_numbers"], self._get_axis(eqn.invars[0])
            if axis in numbers.start_index_map:
                return None
        return self._get_outer(operands[0])

    def _keep_scatter(self, eqn: JaxprEqn, operands: list[Any], results: list[Any]) -> int | None:
        numbers = eqn.params["dimension_numbers"]
        is_over_rows = self._get_axis(results[0]) in numbers.scatter_dims_to_operand_dims
        return None if is_over_rows else self._get_outer(operands[0])


# Parameters with the axes along which primitives move or combine elements.
_AXIS_PARAMETERS = {
    "rev": "dimensions",
    "sort": "dimension",
    **dict.fromkeys(["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"], "axis"),
}
_FAMILIES = (
    dict.fromkeys(_AXIS_PARAMETERS, "along_axes")
    | dict.fromkeys(["scatter_add", "scatter-add", "scatter_mul", "scatter_min"], "scatter")
    | dict.fromkeys(
        [
            "reduce_window",
            "reduce_window_sum",
            "reduce_window_max",
            "reduce_window_min",
            "select_and_gather_add",
        ],
        "window",
    )
)
