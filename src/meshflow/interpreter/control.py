"""Rules of loops and branches: Python loops over the plans of their inner programs."""

from __future__ import annotations

import jax
import numpy as np

from meshflow.environment.jax_internals import count_scan_operands
from meshflow.interpreter.table import Compute, Equation, HostArray, rule


@rule("scan")
def _scan(equation: Equation) -> Compute:
    p = equation.params
    assert equation.bind is not None
    run_body = equation.bind(p["jaxpr"]).run
    num_consts, num_carry = count_scan_operands(p)
    length, first = p["length"], num_consts + num_carry
    order = range(length - 1, -1, -1) if p["reverse"] else range(length)
    rows = equation.outputs[num_carry:]

    def run(*arrays: HostArray) -> list[HostArray]:
        fixed, carry, xs = arrays[:num_consts], list(arrays[num_consts:first]), arrays[first:]
        ys = [np.empty(shape, dtype) for shape, dtype in rows]
        for i in order:
            results = run_body([*fixed, *carry, *[x[i] for x in xs]])
            carry = results[:num_carry]
            for y, result in zip(ys, results[num_carry:], strict=True):
                y[i] = result
        return [np.array(c) for c in carry] + ys

    return run


@rule("while")
def _loop(equation: Equation) -> Compute:
    p = equation.params
    assert equation.bind is not None
    test, body = equation.bind(p["cond_jaxpr"]).run, equation.bind(p["body_jaxpr"]).run
    num_test, num_body = p["cond_nconsts"], p["body_nconsts"]

    def run(*arrays: HostArray) -> list[HostArray]:
        test_consts, body_consts = arrays[:num_test], arrays[num_test : num_test + num_body]
        carry = list(arrays[num_test + num_body :])
        while test([*test_consts, *carry])[0]:
            carry = body([*body_consts, *carry])
        return [np.array(c) for c in carry]

    def run_batch(*arrays: HostArray) -> list[HostArray]:
        test_consts, body_consts = arrays[:num_test], arrays[num_test : num_test + num_body]
        carry = list(arrays[num_test + num_body :])
        while (active := test([*test_consts, *carry])[0]).any():
            # Elements of the batch for which the loop has ended keep their values.
            results = body([*body_consts, *carry])
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
    assert equation.bind is not None
    branches = [equation.bind(branch).run for branch in equation.params["branches"]]
    last = len(branches) - 1

    def run(index: HostArray, *arrays: HostArray) -> list[HostArray]:
        return [np.array(r) for r in branches[min(max(int(index), 0), last)](arrays)]

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
