"""Interpreter that runs a program in mixed precision and inserts the necessary casts.

Every float32 value exists in the precision in which it was computed and is cast at most once to the
other. Programs inside equations (loops, branches, custom derivatives) receive each value in the
precision in which they use it, so that casts happen outside of loops where possible.

Functions keep their custom derivatives: the rule is called with float32 values and is itself
rewritten.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from meshflow.environment.jax_internals import count_scan_operands, jex_core, source_info_util
from meshflow.environment.types import Array, Atom, ClosedJaxpr, Jaxpr, JaxprEqn
from meshflow.passes.boundary_casts import BoundaryCasts
from meshflow.passes.precision_propagation import Path, Precisions, is_float32
from meshflow.passes.sub_jaxprs import INLINED_CALLS, Region, find_regions

# Parameters that state the dtype of an equation's result.
_DTYPE_PARAMETERS = ("preferred_element_type", "new_dtype", "out_dtype")

_CUSTOM_DERIVATIVES = ("custom_jvp_call", "custom_vjp_call")

# These primitives may compare a value with the values it was selected from, so all of them must be
# rounded alike.
_COMPARING_PRIMITIVES = (
    "eq",
    "ne",
    "max_windows_gradient",
    "select_and_scatter_add",
    "custom_vjp_call",
)

# Makes a function compute in mixed precision; applied to the rules of custom derivatives.
Rewriter = Callable[[Callable[..., Any]], Callable[..., Any]]


def run_in_mixed_precision(
    closed: ClosedJaxpr,
    precisions: Precisions,
    low: np.dtype,
    rewriter: Rewriter,
    arrays: Sequence[Any],
) -> list[Any]:
    """Return the results of a program, computed in mixed precision.

    Args:
      closed: The program.
      precisions: Precisions of its equations.
      low: The low precision, a NumPy dtype.
      rewriter: Makes a function compute in mixed precision.
      arrays: Inputs of the program.
    """
    if not precisions.low_precision:
        return jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *arrays)
    interpreter = _MixedPrecisionInterpreter(precisions, low, rewriter)
    outputs = interpreter.run(closed.jaxpr, (), closed.consts, arrays)
    return [interpreter.as_array(o, False) for o in outputs]


class _CastableValue:
    """A float32 value of the original program, cached in each precision in which it is read."""

    __slots__ = ("low", "versions")

    def __init__(self, array: Array, low: bool) -> None:
        self.low = low
        self.versions = {low: array}


# The value of a variable: float32 values are castable, all others are arrays.
_AnyValue: TypeAlias = _CastableValue | Any


@dataclasses.dataclass
class _CustomDerivative:
    """A function with a custom derivative.

    Attributes:
      original: The function in float32, with its derivative.
      invars: Its inputs.
      outvars: Its results.
      ins: For each input, whether it arrives in low precision.
      outs: For each result, whether it leaves in low precision.
    """

    original: Callable[..., list[Any]]
    invars: list[Any]
    outvars: list[Any]
    ins: list[bool]
    outs: list[bool]


class _MixedPrecisionInterpreter:
    """Interpreter of a jaxpr; values of float32 variables are `_CastableValue`s, all others arrays."""

    def __init__(self, precisions: Precisions, low: np.dtype, rewriter: Rewriter) -> None:
        self._precisions = precisions
        self._low = low
        self._rewriter = rewriter
        self._boundary_casts = BoundaryCasts(precisions)

    # ---- values ----------------------------------------------------------------------------

    def wrap_array(self, atom: Atom, array: _AnyValue) -> _AnyValue:
        """Return the value of a variable: a `_CastableValue` if the variable is float32."""
        if not is_float32(atom) or isinstance(array, _CastableValue):
            return array
        return _CastableValue(array, array.dtype == self._low)

    def as_array(self, value: _AnyValue, low: bool) -> Array:
        """Return the array of a value; float32 values in the requested precision."""
        if not isinstance(value, _CastableValue):
            return value
        if low not in value.versions:
            dtype = self._low if low else np.dtype("float32")
            value.versions[low] = _cast(value.versions[value.low], dtype)
        return value.versions[low]

    def _round_to_low(self, value: _AnyValue, array: Array) -> Array:
        """Round a low-precision value that was cast to float32; XLA may remove a pair of casts."""
        if not isinstance(value, _CastableValue) or not value.low:
            return array
        info = jax.numpy.finfo(self._low)
        return jax.lax.reduce_precision(array, exponent_bits=info.nexp, mantissa_bits=info.nmant)

    def _read_operands(self, eqn: JaxprEqn, values: list[Any], flags: Sequence[bool]) -> list[Any]:
        """Return the operands of an equation, each in low precision if its flag is set."""
        arrays = [self.as_array(v, f) for v, f in zip(values, flags, strict=True)]
        if eqn.primitive.name not in _COMPARING_PRIMITIVES:
            return arrays
        triples = zip(values, arrays, flags, strict=True)
        return [a if f else self._round_to_low(v, a) for v, a, f in triples]

    # ---- running ---------------------------------------------------------------------------

    def run(
        self, jaxpr: Jaxpr, path: Path, consts: Sequence[Any], args: Sequence[Any]
    ) -> list[Any]:
        """Return the values of a jaxpr's outputs, given arrays or values of its inputs."""
        env: dict[Atom, _AnyValue] = {}
        for var, array in zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True):
            env[var] = self.wrap_array(var, array)

        def read(atom: Atom) -> _AnyValue:
            if isinstance(atom, jex_core.Literal):
                return _CastableValue(atom.val, False) if is_float32(atom) else atom.val
            return env[atom]

        for i, eqn in enumerate(jaxpr.eqns):
            eqn_path = (*path, i)
            values = [read(v) for v in eqn.invars]
            info = eqn.source_info
            stack = source_info_util.current_name_stack() + info.name_stack
            with (
                source_info_util.user_context(info.traceback, name_stack=stack),
                eqn.ctx.manager,
            ):
                outs = self._run_equation(eqn, eqn_path, values)
            for var, out in zip(eqn.outvars, outs, strict=True):
                env[var] = self.wrap_array(var, out)
        return [read(v) for v in jaxpr.outvars]

    def _run_equation(self, eqn: JaxprEqn, path: Path, values: list[Any]) -> list[Any]:
        if path in self._precisions.regions:
            regions = find_regions(eqn)
            if eqn.primitive.name in INLINED_CALLS:
                return self._run_inlined(eqn, regions[0], path, values)
            return self._run_regions(eqn, regions, path, values)
        low_precision = path in self._precisions.low_precision
        params = eqn.params
        if low_precision:
            params = dict(params)
            for name in _DTYPE_PARAMETERS:
                if params.get(name) == np.float32:
                    params[name] = self._low
        arrays = self._read_operands(eqn, values, [low_precision] * len(values))
        if low_precision and _is_identity_cast(eqn, arrays, params):
            return arrays
        results = eqn.primitive.bind(*arrays, **eqn.primitive.get_bind_params(params))
        return list(results) if eqn.primitive.multiple_results else [results]

    def _run_inlined(
        self, eqn: JaxprEqn, region: Region, path: Path, values: list[Any]
    ) -> list[Any]:
        outs = self.run(region.jaxpr, (*path, region.key), region.consts, values)
        shardings = eqn.params.get("out_shardings", ())
        for i, sharding in enumerate(shardings):
            if isinstance(sharding, jax.sharding.Sharding):
                low = isinstance(outs[i], _CastableValue) and outs[i].low
                array = jax.lax.with_sharding_constraint(self.as_array(outs[i], low), sharding)
                outs[i] = self.wrap_array(eqn.outvars[i], array)
        return outs

    # ---- programs inside equations ---------------------------------------------------------

    def _run_regions(
        self, eqn: JaxprEqn, regions: list[Region], path: Path, values: list[Any]
    ) -> list[Any]:
        available = [isinstance(v, _CastableValue) and v.low for v in values]
        flags = self._boundary_casts.find_low_operands(eqn, regions, path, available)
        outs = self._boundary_casts.find_low_results(eqn, regions, path, flags)
        arrays = self._read_operands(eqn, values, flags)
        bodies = [self._make_body(r, path, outs) for r in regions]
        name, params = eqn.primitive.name, eqn.params
        if name == "scan":
            return _run_scan(params, bodies[0], arrays)
        if name == "while":
            return _run_while(params, bodies, arrays)
        if name == "cond":
            return self._run_cond(eqn, bodies, arrays)
        if name == "shard_map":
            return jax.shard_map(
                bodies[0],
                mesh=params["mesh"],
                in_specs=params["in_specs"],
                out_specs=list(params["out_specs"]),
                axis_names=params["newly_manual_axes"],
                check_vma=params["check_vma"],
            )(*arrays)
        if name in _CUSTOM_DERIVATIVES:
            count = params["num_consts"]
            # Values that the function closes over are not arguments of its derivative rule.
            body = functools.partial(bodies[0], *arrays[:count])
            original = functools.partial(
                _make_binder(eqn), *self._cast_to_original(arrays[:count], eqn.invars)
            )
            custom = _CustomDerivative(
                original, eqn.invars[count:], eqn.outvars, flags[count:], outs
            )
            wrap = self._wrap_custom_jvp if name == "custom_jvp_call" else self._wrap_custom_vjp
            return wrap(body, custom)(*arrays[count:])
        # The equation of jax.checkpoint has parameters that jax.checkpoint does not accept, so bind
        # it directly.
        closed = jax.make_jaxpr(bodies[0])(*arrays)
        jaxpr = closed.jaxpr.replace(
            constvars=[],
            invars=[*closed.jaxpr.constvars, *closed.jaxpr.invars],
            debug_info=closed.jaxpr.debug_info.with_unknown_names(),
        )
        return eqn.primitive.bind(*closed.consts, *arrays, **{**params, "jaxpr": jaxpr})

    def _make_body(self, region: Region, path: Path, flags: list[bool]) -> Callable[..., list[Any]]:
        """Return the program of a region as a function of arrays."""

        def body(*arrays: Any) -> list[Any]:
            outs = self.run(region.jaxpr, (*path, region.key), region.consts, arrays)
            return [
                self.as_array(o, result is not None and flags[result])
                for (result, _), o in zip(region.results, outs, strict=True)
            ]

        body.__name__ = region.jaxpr.debug_info.func_name.split(" ")[0]
        return body

    def _run_cond(
        self, eqn: JaxprEqn, bodies: list[Callable[..., Any]], arrays: list[Any]
    ) -> list[Any]:
        index, *operands = arrays
        branches = [jax.make_jaxpr(body)(*operands) for body in bodies]
        # Constants of all branches become operands of each.
        variables = [v for b in branches for v in b.jaxpr.constvars]
        consts = [c for b in branches for c in b.consts]
        closed = [
            jex_core.ClosedJaxpr(
                b.jaxpr.replace(
                    constvars=[],
                    invars=[*variables, *b.jaxpr.invars],
                    debug_info=b.jaxpr.debug_info.with_unknown_names(),
                ),
                [],
            )
            for b in branches
        ]
        params = {**eqn.params, "branches": tuple(closed)}
        return eqn.primitive.bind(index, *consts, *operands, **params)

    def _wrap_custom_jvp(
        self, body: Callable[..., Any], custom: _CustomDerivative
    ) -> Callable[..., Any]:
        fn = jax.custom_jvp(body)

        @fn.defjvp
        def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            full = self._cast_to_original(primals, custom.invars)
            # Tangents of integers have the dtype float0, which programs do not accept.
            indices = [i for i, t in enumerate(tangents) if t.dtype != jax.dtypes.float0]
            moving = self._cast_to_original(
                [tangents[i] for i in indices], [custom.invars[i] for i in indices]
            )

            def derive(full: Sequence[Any], moving: Sequence[Any]) -> Any:
                complete = list(tangents)
                for i, tangent in zip(indices, moving, strict=True):
                    complete[i] = tangent
                return jax.jvp(custom.original, tuple(full), tuple(complete))

            results, derivatives = self._rewriter(derive)(full, moving)
            return self._cast_to_low(results, custom.outs), self._cast_to_low(
                derivatives, custom.outs
            )

        return fn

    def _wrap_custom_vjp(
        self, body: Callable[..., Any], custom: _CustomDerivative
    ) -> Callable[..., Any]:
        fn = jax.custom_vjp(body)

        def forward(*arrays: Any) -> tuple[list[Any], Callable[..., Any]]:
            derive = functools.partial(jax.vjp, custom.original)
            results, pullback = self._rewriter(derive)(
                *self._cast_to_original(arrays, custom.invars)
            )
            return self._cast_to_low(results, custom.outs), pullback

        def backward(pullback: Callable[..., Any], cotangents: Sequence[Any]) -> tuple[Any, ...]:
            full = self._cast_to_original(cotangents, custom.outvars)
            gradients = self._cast_to_low(self._rewriter(pullback)(full), custom.ins)
            return tuple(None if g.dtype == jax.dtypes.float0 else g for g in gradients)

        fn.defvjp(forward, backward)
        return fn

    def _cast_to_original(self, arrays: Sequence[Any], variables: Sequence[Atom]) -> list[Any]:
        """Cast arrays to the dtypes of the original program."""
        return [
            _cast(a, np.dtype("float32")) if is_float32(v) else a
            for a, v in zip(arrays, variables, strict=False)
        ]

    def _cast_to_low(self, arrays: Sequence[Any], low: list[bool]) -> list[Any]:
        return [_cast(a, self._low) if f else a for a, f in zip(arrays, low, strict=True)]


def _cast(array: Any, dtype: np.dtype) -> Any:
    if np.ndim(array) == 0 and isinstance(array, np.generic | np.ndarray | float | int):
        # A mask of -1e9 becomes float16's minimum, because an infinity times 0 would be NaN.
        limit = float(jax.numpy.finfo(dtype).max)
        return np.asarray(np.clip(array, -limit, limit) if np.isfinite(array) else array, dtype)
    if array.dtype == dtype:
        return array
    return jax.lax.convert_element_type(array, dtype)


def _is_identity_cast(eqn: JaxprEqn, arrays: list[Any], params: dict[str, Any]) -> bool:
    return (
        eqn.primitive.name == "convert_element_type"
        and params.get("sharding") is None
        and getattr(arrays[0], "dtype", None) == params["new_dtype"]
    )


def _make_binder(eqn: JaxprEqn) -> Callable[..., list[Any]]:
    """Return an equation as a function of arrays."""
    params = eqn.primitive.get_bind_params(eqn.params)
    return lambda *arrays: eqn.primitive.bind(*arrays, **params)


def _run_scan(params: dict[str, Any], body: Callable[..., Any], arrays: list[Any]) -> list[Any]:
    consts, carry = count_scan_operands(params)

    def step(state: Sequence[Any], slices: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        outs = body(*arrays[:consts], *state, *slices)
        return outs[:carry], outs[carry:]

    state, stacked = jax.lax.scan(
        step,
        arrays[consts : consts + carry],
        arrays[consts + carry :],
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    return [*state, *stacked]


def _run_while(params: dict[str, Any], bodies: list[Any], arrays: list[Any]) -> list[Any]:
    first = params["cond_nconsts"]
    second = first + params["body_nconsts"]
    test, body = bodies
    return list(
        jax.lax.while_loop(
            lambda state: test(*arrays[:first], *state)[0],
            lambda state: body(*arrays[first:second], *state),
            list(arrays[second:]),
        )
    )
