"""Tiling of attention that a program computes by products of matrices and a softmax.

A program is rewritten before compilation, when all derivatives are taken, so that forms written by
hand use `kernels.attention`: a product of queries and keys, a scale, biases and masks, a softmax,
dropout and a product with the values, with their gradients if there are any. The scores remain if
another equation reads them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from meshflow.environment.inner_jaxprs import to_open_jaxpr
from meshflow.environment.jax_internals import dce_jaxpr
from meshflow.environment.types import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from meshflow.kernels import attention
from meshflow.kernels.attention import AttentionOperands, ScoreOptions
from meshflow.passes.attention_match import RANDOM_CALL, AttentionMatch, is_long
from meshflow.passes.attention_terms import CONSTANT, NotAttentionError, Product, require
from meshflow.passes.jaxprs import get_aval, rewrite_equations, splice_program, trace_atoms
from meshflow.passes.sub_jaxprs import CALLS, find_call_body


def tile_attention(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Replace attention to long sequences; return the same object if there is none."""
    if jax.default_backend() != "cpu":
        return closed
    return rewrite_equations(closed, _tile_in_jaxpr, ("exp",))


def _tile_in_jaxpr(jaxpr: Jaxpr, eqns: list[JaxprEqn]) -> list[JaxprEqn]:
    shapes = {shape for eqn in eqns for shape in _find_long_softmaxes(eqn)}
    if not shapes:
        return eqns
    inlined = jaxpr.replace(eqns=list(_inline_calls(eqns, {}, shapes)))
    simplified = list(dce_jaxpr(inlined, [True] * len(inlined.outvars), instantiate=True)[0].eqns)
    found = False
    for exponential in [e for e in simplified if e.primitive.name == "exp"]:
        try:
            simplified = _replace_equations(AttentionMatch(jaxpr, simplified, exponential))
            found = True
        except NotAttentionError:
            pass
    return simplified if found else eqns


def _find_long_softmaxes(eqn: JaxprEqn) -> list[tuple[int, ...]]:
    """Return the shapes of exponentials that may be those of scores of long sequences."""
    if eqn.primitive.name == "exp":
        shape = get_aval(eqn.outvars[0]).shape
        return [shape] if is_long(shape) else []
    inner = find_call_body(eqn) if eqn.primitive.name in CALLS else None
    eqns = [] if inner is None else to_open_jaxpr(inner).eqns
    return [shape for e in eqns for shape in _find_long_softmaxes(e)]


def _inline_calls(
    eqns: Iterable[JaxprEqn], names: dict[Var, Atom], shapes: set[tuple[int, ...]]
) -> Iterator[JaxprEqn]:
    """Yield equations with calls inlined that compute arrays of some shapes.

    Args:
      eqns: The equations.
      names: Replacements of variables, which is changed.
      shapes: The shapes.
    """

    def read(atom: Atom) -> Atom:
        return atom if isinstance(atom, Literal) else names.get(atom, atom)

    for eqn in eqns:
        eqn = eqn.replace(invars=[read(a) for a in eqn.invars])
        body = find_call_body(eqn) if eqn.primitive.name in CALLS else None
        is_large = any(get_aval(v).shape in shapes for v in eqn.outvars)
        # Dropout is recognized by the call of its random numbers.
        is_inlined = body is not None and is_large and eqn.params.get("name") != RANDOM_CALL
        opened = to_open_jaxpr(body) if is_inlined else None  # type: ignore[arg-type]
        if opened is None or opened.constvars or len(opened.invars) != len(eqn.invars):
            yield eqn
            continue
        # A program may be called several times, so its variables are replaced by new ones.
        inner: dict[Var, Atom] = dict(zip(opened.invars, eqn.invars, strict=True))
        for inner_eqn in opened.eqns:
            inner |= {v: Var(v.aval) for v in inner_eqn.outvars}
        copies = [
            e.replace(outvars=[inner[v] for v in e.outvars])  # type: ignore[misc]
            for e in opened.eqns
        ]
        yield from _inline_calls(copies, inner, shapes)
        for outer, result in zip(eqn.outvars, opened.outvars, strict=True):
            names[outer] = result if isinstance(result, Literal) else inner[result]


def _replace_equations(match: AttentionMatch) -> list[JaxprEqn]:
    """Return the equations of a program with attention by the primitives of `kernels.attention`."""
    names = ("query", "key", "value")
    matrices, batch = match.matrices, match.shape[:-2]
    dtypes = {get_aval(matrices[n].root).dtype.name for n in names}
    require(len(dtypes) == 1 and dtypes <= {"float32", "bfloat16"})
    key, rate, noise = match.noise or (None, 0.0, "float32")
    masking = "replace" if match.masks else "add"
    options = ScoreOptions(match.scale, False, masking, match.fill, rate, noise)
    gradients = [p for p in match.products if p.kind != "values"]
    forward = next(p for p in match.products if p.kind == "values")
    require(not gradients or "gradient" in matrices)
    sources = [matrices[n].root for n in names]
    extras = [b[0] for b in match.biases] + [m[0] for m in match.masks]
    noise_keys = [] if key is None else [key]
    atoms: list[Any] = [*sources, *extras, *noise_keys]

    def make_operands(arrays: Sequence[Array]) -> AttentionOperands:
        q, k, v = (matrices[n].read(a, batch) for n, a in zip(names, arrays, strict=False))
        rest = list(arrays[3:])
        biases = [_align(rest.pop(0), axes, match.rank) for _, axes in match.biases]
        masks = [_align(rest.pop(0), axes, match.rank) != hides for _, axes, hides in match.masks]
        return attention.broadcast_masks(
            AttentionOperands(
                *(q, k, v),
                functools.reduce(jnp.add, biases) if biases else None,
                functools.reduce(jnp.logical_and, masks) if masks else None,
                None,
                rest[0] if rest else None,
            )
        )

    def restore(result: Array, product: Product) -> Array:
        """Return [b, t, n, h] in the layout of the product that it replaces."""
        aval = get_aval(match.eqns[product.eqn_index].outvars[0])
        array = result.swapaxes(1, 2)
        array = array.reshape(*batch, *array.shape[2:])
        present = [i for i in product.order if i != CONSTANT]
        rest = [i for i in range(match.rank) if i not in present]
        return array.transpose(*rest, *present).reshape(aval.shape).astype(aval.dtype)

    def attend(*arrays: Array) -> list[Array]:
        results = attention.compute_with_residuals(options, make_operands(arrays))
        return [restore(results[0], forward), *results]

    def differentiate(*arrays: Array) -> list[Array]:
        *operands, out, high, total, gradient = arrays
        changes = attention.differentiate(
            options,
            make_operands(operands),
            (out, high, total),
            matrices["gradient"].read(gradient, batch).astype(out.dtype),
        )
        return [restore(changes[names.index(p.kind)], p) for p in gradients]

    inserted: dict[int, list[JaxprEqn]] = {}
    results = trace_atoms(attend, atoms)
    require(not results.consts)
    inserted[forward.eqn_index] = splice_program(
        results, atoms, [match.eqns[forward.eqn_index].outvars[0]]
    )
    if gradients:
        residuals = list(results.jaxpr.outvars[1:])
        operands = [*atoms, *residuals, matrices["gradient"].root]
        outputs = [match.eqns[p.eqn_index].outvars[0] for p in gradients]
        first = min(p.eqn_index for p in gradients)
        changes = trace_atoms(differentiate, operands)
        require(not changes.consts)
        inserted[first] = splice_program(changes, operands, outputs)
    eqns: list[JaxprEqn] = []
    for i, eqn in enumerate(match.eqns):
        eqns += inserted.get(i, [])
        if i not in match.replaced:
            eqns.append(eqn)
    return eqns


def _align(array: Array, axes: tuple[int, ...], rank: int) -> Array:
    """Return a bias or mask as [b or 1, n or 1, t or 1, s or 1]."""
    used = [i for i, a in enumerate(axes) if a != CONSTANT]
    array = array.reshape([array.shape[i] for i in used])
    present = [axes[i] for i in used]
    array = array.transpose(np.argsort(present))
    sizes = iter(array.shape)
    shape = [next(sizes) if i in present else 1 for i in range(rank)]
    full = [1] * (3 - rank) + shape if rank < 4 else shape
    return array.reshape([full[0], 1, *full[1:]] if rank < 4 else full)
