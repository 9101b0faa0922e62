"""Rules of loops and branches: Python loops over the plans of their inner programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from meshflow.environment.jax_internals import count_scan_operands
from meshflow.interpreter.symbolic_sizes import UNBOUND, SizeGuardError
from meshflow.interpreter.table import Compute, Equation, HostArray, rule


def _own(arrays: Sequence[HostArray], is_copied: Sequence[bool]) -> list[HostArray]:
    """Copy the arrays that may share memory with others, so that the next iteration may overwrite all."""
    return [np.array(a) if copies else a for a, copies in zip(arrays, is_copied, strict=True)]


class UnequalRows(list[Any]):
    """The rows of a stacked result of a scan with sizes that differ between iterations."""


@rule("scan")
def _scan(equation: Equation) -> Compute:
    p = equation.params
    num_consts, num_carry = count_scan_operands(p)
    length, first = p["length"], num_consts + num_carry
    body = equation.bind(p["jaxpr"], range(num_consts, first))
    run_body, is_copied = body.run, body.is_copied[:num_carry]
    is_reverse = p["reverse"]
    order = range(length - 1, -1, -1) if is_reverse else range(length)
    specs = equation.outputs[num_carry:]

    def run(*arrays: HostArray) -> list[HostArray]:
        fixed, xs = arrays[:num_consts], arrays[first:]
        carry = [np.array(a) for a in arrays[num_consts:first]]
        ys: list[Any] = [
            UnequalRows([None] * length) if UNBOUND in shape else np.empty(shape, dtype)
            for shape, dtype in specs
        ]
        # Iteration over an array is faster than reads by index.
        rows = zip(*[x[::-1] if is_reverse else x for x in xs], strict=True)
        for i in order:
            results = run_body([*fixed, *carry, *next(rows, ())])
            for y, result in zip(ys, results[num_carry:], strict=True):
                y[i] = np.array(result) if type(y) is UnequalRows else result
            carry = _own(results[:num_carry], is_copied)
        return carry + ys

    return run


@rule("while")
def _loop(equation: Equation) -> Compute:
    p = equation.params
    num_test, num_body = p["cond_nconsts"], p["body_nconsts"]
    num_carry = len(equation.outputs)
    test = equation.bind(p["cond_jaxpr"], ()).run
    loop_body = equation.bind(p["body_jaxpr"], range(num_body, num_body + num_carry))
    body, is_copied = loop_body.run, loop_body.is_copied

    def run(*arrays: HostArray) -> list[HostArray]:
        test_consts, body_consts = arrays[:num_test], arrays[num_test : num_test + num_body]
        carry = [np.array(a) for a in arrays[num_test + num_body :]]
        while test([*test_consts, *carry])[0]:
            carry = _own(body([*body_consts, *carry]), is_copied)
        return carry

    def run_batch(*arrays: HostArray) -> list[HostArray]:
        test_consts, body_consts = arrays[:num_test], arrays[num_test : num_test + num_body]
        carry = list(arrays[num_test + num_body :])
        while (active := test([*test_consts, *carry])[0]).any():
            # Elements of the batch for which the loop has ended keep their values.
            results = body([*body_consts, *[np.array(c) for c in carry]])
            carry = [
                np.where(active.reshape(active.shape + (1,) * (np.ndim(r) - active.ndim)), r, c)
                for r, c in zip(results, carry, strict=True)
            ]
        return [np.array(c) for c in carry]

    if p["cond_jaxpr"].out_avals[0].shape:
        return run_batch
    return run


@rule("cond")
def _branch(equation: Equation) -> Compute:
    programs = [equation.bind(branch, ()) for branch in equation.params["branches"]]
    branches = [(program.run, program.is_copied) for program in programs]
    last = len(branches) - 1

    def run(index: HostArray, *arrays: HostArray) -> list[HostArray]:
        run_branch, is_copied = branches[min(max(int(index), 0), last)]
        return _own(run_branch(arrays), is_copied)

    return run


@rule("pure_callback", "io_callback", "debug_callback", is_pure=False, uses_shapes=False)
def _call_python(equation: Equation) -> Compute:
    callback, outputs = equation.params["callback"], equation.outputs

    def run(*arrays: HostArray) -> list[HostArray]:
        # Callbacks take JAX arrays, as in a compiled program.
        with np.errstate(all="warn"):
            results = callback(*[jax.numpy.asarray(np.array(a)) for a in arrays])
        leaves = jax.tree.leaves(results)
        return [np.asarray(r, spec.dtype) for r, spec in zip(leaves, outputs, strict=True)]

    return run


@rule("platform_index")
def _find_platform(equation: Equation) -> Compute:
    platforms = equation.params["platforms"]
    index = next(i for i, names in enumerate(platforms) if names is None or "cpu" in names)
    return lambda: np.array(index, np.int32)


@rule("host_computation", uses_shapes=False, is_pure=False, accepts_symbols=True)
def _compute_on_host(equation: Equation) -> Compute:
    function, outputs = equation.params["function"], equation.outputs

    def run(*arrays: HostArray) -> list[HostArray]:
        results = function(*map(np.asarray, arrays))
        return [np.asarray(r, spec.dtype) for r, spec in zip(results, outputs, strict=True)]

    return run


@rule("write_row", uses_shapes=False)
def _write_row(_: Equation) -> Compute:
    def run(array: HostArray, row: HostArray, index: HostArray) -> HostArray:
        position, size = int(index), len(array)
        if position < 0:
            raise SizeGuardError({})
        if position < size:
            result = np.array(array)
        else:
            result = np.zeros((position + 1, *array.shape[1:]), array.dtype)
            result[:size] = array
        result[position] = row
        return result

    return run


@rule("set_sizes", is_view=True, uses_shapes=False)
def _set_sizes(_: Equation) -> Compute:
    return lambda x: x
