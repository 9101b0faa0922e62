"""The names of JAX that are not part of its stable interface.

No other file imports from `jax._src`, `jax.interpreters`, `jax.extend` or `jaxlib`, so a new version
of JAX is checked here first. The list states the use of each name, and the public API that would
replace it:

* `distributed`, `runtime`: JAX's coordination service in a process of our choice, its clients,
  collectives over TCP, and barriers with a timeout. Public: `jax.distributed.initialize` with a
  service in another process, and a timeout in `jax.experimental.multihost_utils`.
* `xla_bridge`: whether devices were listed (`jax.devices()` would list them), and the CPU client with
  those collectives. Public: a predicate in `jax.extend.backend`, and an argument of
  `jax.distributed.initialize`.
* `eager_constant_folding`: a trace inside `jax.ensure_compile_time_eval` that remains a trace.
  Public: only the opposite exists.
* `trace_state_clean`: whether a transformation of JAX is in progress, checked for every element of a
  dataset. Public: the same name in `jax.core`, which JAX removed.
* `cache_key`: the key of compiled programs, to which names of layers are added. Public:
  `jax_compilation_cache_include_metadata_in_key`, which also adds source lines.
* `persistent_cache_min_compile_time_secs`: the minimum compilation time of cached programs, as a
  context manager. Public: the option for the entire process.
* `parse_flatten_op_sharding`: shardings of the operands of a lowering, which XLA passes in its own
  format. Public: `NamedSharding`s in the callbacks of `jax.experimental.custom_partitioning`.
* `linearization_rules`, `make_zero_tangent`, `has_structured_residuals`: the rules by which `jax.vjp` linearizes primitives,
  the tangent of constants, and whether the rules also return residuals that are no arrays. Public: none.
* `ad`, `batching`, `mlir`: derivatives, batching and lowerings of our primitives. Public: functions
  of `jax.extend` that register them.
* `common_lowerings`, `platform_lowerings`, `needs_devices_when_lowered`: JAX's lowerings, which ours
  call in other cases, and the primitives whose lowerings need the devices. Public: functions that
  return the lowering of a primitive, and an argument of its registration.
* `reductions_over_devices`: primitives of sums and extremes over the devices of a mesh. Public: three of five.
* `dce_jaxpr`, `dce_rules`: a jaxpr without the equations that unused results need. Public: none.
* `SizeDecisions`, `decide_sizes_by_hints`, `assume_large_sizes`: comparisons of symbolic sizes that depend on the
  values of the symbols. Public: none; `jax.export` raises an error for them.
* `compile_sizes`: a Python function of symbols from the text of symbolic sizes, which is evaluated faster
  than these. Public: none.
* `evaluate_size`, `list_dimensions`, `replace_dimensions`: the value and the dimensions of a symbolic size, and the
  size with other dimensions. Public: none.
* `split_logs`: the results of the flat rule of a `custom_vjp`. Public: none.
* `get_jaxpr_value`: the variable of a jaxpr that a tracer represents, for graphs of functions.
  Public: none.
* `JaxprTracer`, `find_jaxpr_trace`, `read_trace_context`: the equations of a trace in progress, which are copied for
  equal calls, and the options of JAX on which they depend. Public: `jax.jit(inline=True)`, which is slower.
* `DeviceArray`: the class of arrays, which tracers do not have. Public: none.
* `jex_backend`, `jex_core`, `jex_primitives`, `linear_util`, `source_info_util`: changes of the number of
  devices, jaxprs and primitives, all primitives by name, derivative rules of custom functions, and source
  lines of users' programs. These names of `jax.extend` are public, but may change in any version.
* `mlir_ir`, `mlir_func`, `mlir_hlo`, `mlir_passes`, `read_portable_artifact`,
  `write_portable_artifact`, `write_older_artifact`, `refine_polymorphic_shapes`: StableHLO programs in TensorFlow's files,
  without the fields that `jax.export` adds. They are read, specialized to known sizes, and written.
  Public: a function of `jax.export` for the program alone.
* `mlir_sdy`: arrays with the same sharding. Public: `jax.experimental.shard_alike`, before JAX 0.11.
* `LIBRARIES`: the folder of XLA's libraries; their memory gets huge pages. Public: none.
* `JAXLIB_VERSION`, `read_ffi_version`: the version of jaxlib, and of XLA's foreign function interface.
  An older interface refuses kernels that were compiled with newer headers. Public: the version of
  jaxlib.

`SUPPORTED` is the range of versions of JAX and jaxlib, and `DIFFERENCES` the table of differences
between them. This module handles three of them: `count_scan_operands` reads the parameters of `scan`,
`expand_high_level` expands `call_hi_primitive`, and `make_exported` fills the fields of
`jax.export.Exported`.

The following names may be missing, because there is a slower public alternative:

* `batched_device_put`: the last step of `jax.device_put`, without 30 us of checks of its arguments.
* `copy_to_devices`, `array_copy_semantics`: a copy on the same devices; `jax.numpy.copy` compiles a
  program for each shape.
* `collect_garbage`: makes deleted device arrays release the host arrays whose memory they shared.
* `read_from_device`: the value of an array, without the copy that `numpy.asarray` caches.
* `renew_gpu_options`: makes the GPU client read the environment variables about its memory again.
  Public: none.
* `mlir_lowering`: creates the MLIR context of each program that is lowered, and `make_reading_context` one for
  programs of files. Public: none.
* `call_before_cache_writes`: returns memory before a compiled program is written. Public: none.
* `export_lowering`: lowers programs of `jax.export`, for which JAX imports SciPy. Public: none.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import operator
import re
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.export import is_symbolic_dim

# As in pyproject.toml.
SUPPORTED = ">=0.10,<0.13"


class Difference(NamedTuple):
    """A difference between versions of JAX that Meshflow handles.

    Attributes:
      version: The first version of JAX with the new behaviour.
      change: The new behaviour.
      handled_by: The function or the file of the repository that handles both.
    """

    version: str
    change: str
    handled_by: str


# docs/jax.md shows this table, and scripts/check_jax.py finds further differences.
DIFFERENCES = (
    Difference("0.11", "Python 3.12 is required.", "`requirements-newest.lock`"),
    Difference("0.11", "`scan` has `ft_in` and `ft_out`, not `num_consts` and `num_carry`.", "`count_scan_operands`"),
    Difference("0.11", "`jax.experimental.shard_alike` no longer exists.", "`placement/sharding_groups.py`"),
    Difference("0.11", "`ClosedJaxpr` is the same class as `Jaxpr`.", "`core/tracing/host_callbacks.py`"),
    Difference("0.11", "`jax.export.Exported` has no field `_has_named_shardings`.", "`make_exported`"),
    Difference("0.11", "Annotations have `jax.Array`, not `jax.jaxlib._jax.Array`.", "`numpy/jnp_wrappers.py`"),
    Difference("0.11", "`log2` and `one_minus_square` are primitives.", "`deployment/newer_primitives.py`"),
    Difference("0.11", "`top_k` has `is_stable`, which is true by default.", "`lite/array_ops.py`"),
    Difference("0.11", "Iteration over an array is one `unstack`.", "`deployment/newer_primitives.py`"),
    Difference("0.11", "XLA has no flag `--xla_cpu_use_fusion_emitters`.", "`tests/tiers.py`"),
    Difference("0.11", "XLA's foreign function interface has version 0.4.", "`kernels/library.py`"),
    Difference("0.12", "`call_hi_primitive` calls functions such as `jax.numpy.searchsorted`.", "`expand_high_level`"),
    Difference("0.12", "XLA refuses layouts of results of callbacks.", "`core/iterators/callback_infeed.py`"),
    Difference("0.12", "`jax.numpy.cross` refuses vectors of two elements.", "`ops/math/products.py`"),
    Difference("0.12", "`polynomial` is a primitive.", "`deployment/newer_primitives.py`"),
    Difference("0.12", "Rules of dead-code elimination also take the used inputs.", "`core/values/unknown_sizes.py`"),
    Difference("0.12", "XLA's foreign function interface has version 0.5.", "`kernels/library.py`"),
    Difference("0.12", "Flat rules of `custom_vjp` return a pair of gradients and logs.", "`split_logs`"),
    Difference("0.12", "Rules of linearization also return residuals that are no arrays.", "`environment/linearization.py`"),
)  # fmt: skip

try:
    import jaxlib
    from jax._src import array as _array
    from jax._src import cache_key, distributed, xla_bridge
    from jax._src import compilation_cache as _compilation_cache
    from jax._src import core as _core
    from jax._src import dispatch as _dispatch
    from jax._src.ad_util import p2tz as make_zero_tangent
    from jax._src.config import eager_constant_folding, persistent_cache_min_compile_time_secs
    from jax._src.config import trace_context as read_trace_context
    from jax._src.core import trace_state_clean
    from jax._src.export import _export
    from jax._src.export import shape_poly as _shape_poly
    from jax._src.interpreters import mlir as mlir_lowering
    from jax._src.interpreters.ad import LinearizeTrace as _LinearizeTrace
    from jax._src.interpreters.ad import primitive_linearizations as linearization_rules
    from jax._src.interpreters.mlir import refine_polymorphic_shapes
    from jax._src.interpreters.partial_eval import DynamicJaxprTrace as _JaxprTrace
    from jax._src.interpreters.partial_eval import DynamicJaxprTracer as JaxprTracer
    from jax._src.interpreters.partial_eval import dce_jaxpr, dce_rules
    from jax._src.lax import convolution as _convolution
    from jax._src.lax import parallel as _parallel
    from jax._src.lib import _jax as runtime
    from jax._src.lib import xla_client as _xla_client
    from jax._src.lib.mlir import ir as mlir_ir
    from jax._src.lib.mlir import passmanager as mlir_passes
    from jax._src.lib.mlir.dialects import chlo as _mlir_chlo
    from jax._src.lib.mlir.dialects import func as mlir_func
    from jax._src.lib.mlir.dialects import hlo as mlir_hlo
    from jax._src.lib.mlir.dialects import sdy as mlir_sdy
    from jax._src.sharding_impls import parse_flatten_op_sharding
    from jax.extend import backend as jex_backend
    from jax.extend import core as jex_core
    from jax.extend import linear_util, source_info_util
    from jax.extend.core import primitives as jex_primitives
    from jax.interpreters import ad, batching, mlir

    common_lowerings: Any = mlir._lowerings
    platform_lowerings: Any = mlir._platform_specific_lowerings
    reductions_over_devices: Any = (
        *(jex_primitives.psum_p, jex_primitives.pmax_p, jex_primitives.pmin_p),
        *(_parallel.psum_invariant_p, _parallel.reduce_scatter_p),
    )
    read_portable_artifact: Any = runtime.mlir.deserialize_portable_artifact
    write_portable_artifact: Any = _export._module_to_bytecode
    write_older_artifact: Any = runtime.mlir.serialize_portable_artifact
    export_lowering: Any = _export
    _definitely_equal = _core.definitely_equal.__code__
    has_structured_residuals = (
        "structured_res" in _LinearizeTrace.process_primitive.__code__.co_varnames
    )
    needs_devices_when_lowered: Any = _dispatch.prim_requires_devices_during_lowering
except (ImportError, AttributeError) as error:
    raise ImportError(
        f"Meshflow uses names of JAX that JAX {jax.__version__} does not have ({error}). It works with JAX "
        f"{SUPPORTED}: pip install 'jax{SUPPORTED}'."
    ) from error

LIBRARIES = Path(jaxlib.__file__).parent
JAXLIB_VERSION: str = jaxlib.__version__

batched_device_put: Any = getattr(_xla_client, "batched_device_put", None)
copy_to_devices: Any = getattr(_xla_client, "batched_copy_array_to_devices_with_sharding", None)
array_copy_semantics: Any = getattr(_xla_client, "ArrayCopySemantics", None)
collect_garbage: Any = getattr(runtime, "collect_garbage", None)
DeviceArray: Any = _array.ArrayImpl
read_from_device: Any = getattr(_array.ArrayImpl, "_single_device_array_to_np_array_did_copy", None)


def renew_gpu_options() -> None:
    """Make GPU clients that start later read XLA's environment variables again, which JAX reads once."""
    make = getattr(_xla_client, "generate_pjrt_gpu_plugin_options", None)
    found = getattr(xla_bridge, "_backend_factories", {}).get("cuda")
    options = getattr(getattr(found, "factory", None), "keywords", {}).get("options")
    if make is not None and isinstance(options, dict):
        renewed = make()
        options.clear()
        options.update(renewed)


# The functions in the text of a symbolic size.
_EXPRESSION_NAMES = {"floordiv": operator.floordiv, "mod": operator.mod, "max": max, "min": min}


@functools.lru_cache(maxsize=4096)
def compile_sizes(text: str, names: tuple[str, ...]) -> Callable[..., Any]:
    """Return a function that evaluates an expression of symbolic sizes.

    Args:
      text: The expression, or a tuple of several ones.
      names: Names of the symbols, which are the parameters of the function.

    Example:
      >>> compile_sizes("(d0^2, mod(d0, 4))", ("d0",))(6)
      (36, 2)
    """
    source = f"lambda {', '.join(names)}: {text.replace('^', '**')}"
    function: Callable[..., Any] = eval(source, dict(_EXPRESSION_NAMES))
    return function


def list_dimensions(size: object) -> set[str]:
    """Return the names of the dimensions in a symbolic size; none for other values.

    Example:
      >>> sorted(list_dimensions(jax.export.symbolic_shape("a + 2*b")[0])), list_dimensions(3)
      (['a', 'b'], set())
    """
    expression: Any = size
    return expression._get_vars() if is_symbolic_dim(expression) else set()


def evaluate_size(size: object, dims: Mapping[str, int]) -> int:
    """Return the value of a symbolic size, given those of its dimensions.

    Example:
      >>> evaluate_size(jax.export.symbolic_shape("2*a")[0], {"a": 3})
      6
    """
    return int(replace_dimensions(size, dims))


def replace_dimensions(size: object, dims: Mapping[str, Any]) -> Any:
    """Return a symbolic size with integers or other sizes in place of its dimensions."""
    expression: Any = size
    return expression._evaluate(dims)


def split_logs(results: Any) -> tuple[Sequence[Any], tuple[object, ...]]:
    """Return the gradients that the flat rule of a `custom_vjp` returned, and its logs, which JAX 0.12 adds.

    Example:
      >>> split_logs([1.0, 2.0]), split_logs(([1.0, 2.0], None))
      (([1.0, 2.0], ()), ([1.0, 2.0], (None,)))
    """
    if isinstance(results, tuple) and len(results) == 2 and isinstance(results[0], (list, tuple)):
        return results[0], results[1:]
    return results, ()


class SizeDecisions:
    """Comparisons of symbolic sizes whose results depend on the values of the symbols.

    Args:
      hints: Values of the symbols, by name, that determine the results.

    Attributes:
      unknown: Names of the symbols with values that become known while the program runs.
      guessed: Names of those with hints that are guesses.
      may_equal: Whether guesses follow the sizes that the program combines them with.
    """

    def __init__(self, hints: Mapping[str, int]) -> None:
        self.hints = dict(hints)
        self.unknown: set[str] = set()
        self.guessed: set[str] = set()
        self.may_equal = False
        self._results: dict[tuple[str, str], bool] = {}
        self._names: dict[tuple[str, str], frozenset[str]] = {}

    def __len__(self) -> int:
        return len(self._results)

    def decide(self, difference: Any, relation: str) -> bool:
        """Compare a size with zero.

        Args:
          difference: A symbolic size.
          relation: "==" or ">=".
        """
        key = str(difference), relation
        if (result := self._results.get(key)) is None:
            value = evaluate_size(difference, self.hints)
            # Sizes that may differ are different, as JAX assumes, except after a division: twice the half of an even
            # size is that size.
            is_quotient = "mod(" in key[0] or "floordiv(" in key[0]
            names = self._names[key] = frozenset(list_dimensions(difference))
            # Sizes that depend on values are usually equal if a program combines them. A batch may have as many rows as
            # there are classes: the trace would not be valid for its own sizes if it assumed that they differ.
            may_equal = is_quotient or len(names) == 1 or not self.unknown.isdisjoint(names)
            result = value >= 0 if relation == ">=" else value == 0 and may_equal
            is_guess = self.may_equal and not self.guessed.isdisjoint(names)
            if relation == "==" and value and len(names) == 2 and is_guess and not is_quotient:
                # A guess was corrected, and the other size follows it.
                return self.assume_zero(difference)
            self._results[key] = result
        return result

    def is_different(self, difference: Any) -> bool:
        """Check whether a size is not zero for the hints, or these are guesses."""
        is_guess = not self.guessed.isdisjoint(list_dimensions(difference))
        return is_guess or evaluate_size(difference, self.hints) != 0

    def is_number(self, size: Any, number: int) -> bool:
        """Check whether a size is assumed to be a number; assume it for a guessed symbol if sizes may be equal."""
        known = self._results.get((str(size - number), "=="))
        if known is None and self.may_equal and number > 1 and str(size) in self.guessed:
            known = self.assume_zero(size - number)
            self.guessed.remove(str(size))
        return bool(known)

    def assume_zero(self, difference: Any) -> bool:
        """Assume that a size with an unknown symbol is zero, unless the hints differ; return whether it is assumed.

        Args:
          difference: A symbolic size.
        """
        names = frozenset(list_dimensions(difference))
        if self.unknown.isdisjoint(names):
            return False
        value = evaluate_size(difference, self.hints)
        if self.guessed.isdisjoint(names) and value != 0:
            return False
        if value:
            # A better guess decides later comparisons.
            name = min(self.guessed.intersection(names))
            raised = {**self.hints, name: self.hints[name] + 1}
            change = evaluate_size(difference, raised) - value
            if abs(change) == 1:
                self.hints[name] -= value * change
        key = str(difference), "=="
        self._names[key], self._results[key] = names, True
        return True

    def list_results(self) -> list[tuple[str, str, bool]]:
        """List the comparisons with zero: a size, the relation, and the result."""
        return [(*key, result) for key, result in self._results.items()]

    def compile(
        self, names: Sequence[str], new_names: Collection[str] | None = None
    ) -> Callable[..., bool]:
        """Return a function that checks whether all comparisons have the same results for other values.

        Args:
          names: Names of the symbols, which are the parameters of the function; comparisons of other symbols are
            omitted.
          new_names: Names of which a comparison must contain one, or None.
        """
        guards = [
            f"({difference} {relation} 0) is {result}"
            for (difference, relation), result in self._results.items()
            if self._names[difference, relation].issubset(names)
            and not (new_names and self._names[difference, relation].isdisjoint(new_names))
        ]
        return compile_sizes(" and ".join(guards) or "True", tuple(names))


# Modules of JAX that compare a size with 1 in order to broadcast it.
_BROADCASTING = ("jax._src.core", "jax._src.lax.lax", "jax._src.numpy.util")
# Modules of JAX that check the sizes of operands.
_SIZE_CHECKS = ("jax._src.lax.", "jax._src.numpy.", "jax._src.nn.", "jax._src.ops.")
# Module of JAX that compares the keys of caches.
_CACHE_KEYS = "jax._src.tree_util"
# A large size, and whether it decides inconclusive inequalities.
_LARGE = 1009
_are_sizes_large = contextvars.ContextVar("are_sizes_large", default=False)
# The decisions of traces with symbolic sizes that are in progress, by the `id` of their scopes.
_size_decisions: dict[int, SizeDecisions] = {}


def _find_decisions(*sizes: Any) -> SizeDecisions | None:
    for size in sizes:
        if isinstance(size, _shape_poly._DimExpr):
            return _size_decisions.get(id(size.scope))
    return None


@functools.cache
def _install_size_decisions() -> None:
    """Make comparisons of symbolic sizes ask `_size_decisions` if their results are unknown."""
    is_equal, is_greater_or_equal = _shape_poly._DimExpr.__eq__, _shape_poly._geq_decision

    def decide_equal(self: Any, other: Any, caller: FrameType) -> bool:
        result: bool = is_equal(self, other)
        if result or not _size_decisions or (decisions := _find_decisions(self)) is None:
            return result
        module = caller.f_globals["__name__"]
        is_jax = module.startswith("jax.")
        is_check = caller.f_code is _definitely_equal or module.startswith(_SIZE_CHECKS)
        if isinstance(other, _shape_poly._DimExpr):
            # Caches of JAX also compare keys with different hashes, and must not find the program for another size.
            if other.scope is not self.scope or (is_jax and not is_check):
                return False
        elif not isinstance(other, (int, np.integer)):
            return False
        elif is_jax and (other not in (0, 1) or module == _CACHE_KEYS):
            # JAX compares sizes with other numbers to search in caches, or raises an error if they differ.
            return is_check and decisions.is_number(self, int(other))
        difference = self - other
        if not isinstance(difference, _shape_poly._DimExpr):
            return False
        if (
            module in _BROADCASTING
            and isinstance(other, int)
            and decisions.is_different(difference)
        ):
            # The result of broadcasting is the same if the size is 1, because sizes that are combined are equal.
            return False
        return decisions.decide(difference, "==")

    def compare_equal(self: Any, other: Any) -> bool:
        return decide_equal(self, other, sys._getframe(1))

    def compare_unequal(self: Any, other: Any) -> bool:
        return not decide_equal(self, other, sys._getframe(1))

    def compare_greater_or_equal(left: Any, right: Any, describe: Callable[[], str]) -> bool:
        decisions = _find_decisions(left, right) if _size_decisions else None
        try:
            return bool(is_greater_or_equal(left, right, describe))
        except _shape_poly.InconclusiveDimensionOperation:
            if decisions is not None:
                return decisions.decide(left - right, ">=")
            if not _are_sizes_large.get():
                raise
        difference = left - right
        return evaluate_size(difference, dict.fromkeys(list_dimensions(difference), _LARGE)) >= 0

    def decide_choice(choose: Callable[[Any, Any], Any], is_max: bool) -> Callable[[Any, Any], Any]:
        def choose_by_hints(self: Any, other: Any) -> Any:
            if not _size_decisions or _find_decisions(self, other) is None:
                return choose(self, other)
            return self if compare_greater_or_equal(self, other, str) == is_max else other

        return choose_by_hints

    # A size such as `min(64, n)` could not be added to an axis of size n.
    for name in ("max", "rmax", "min", "rmin"):
        choose = getattr(_shape_poly._DimExpr, name)
        setattr(_shape_poly._DimExpr, name, decide_choice(choose, name.endswith("max")))
    # A size without this method is true, so `if size % 2` would not ask for a decision.
    setattr(_shape_poly._DimExpr, "__bool__", lambda self: not compare_equal(self, 0))
    setattr(_shape_poly._DimExpr, "__eq__", compare_equal)
    setattr(_shape_poly._DimExpr, "__ne__", compare_unequal)
    setattr(_shape_poly, "_geq_decision", compare_greater_or_equal)
    # The padding of the gradient of a strided convolution depends on sizes. JAX would convert it to integers.
    functions = {**vars(operator), "index": _convert_to_size}
    setattr(_convolution, "operator", types.SimpleNamespace(**functions))


def _convert_to_size(value: Any) -> Any:
    return value if is_symbolic_dim(value) else operator.index(value)


@contextlib.contextmanager
def decide_sizes_by_hints(scope: Any, decisions: SizeDecisions) -> Iterator[None]:
    """Decide inconclusive comparisons of symbolic sizes by hints, and record them.

    Args:
      scope: The `jax.export.SymbolicScope` of the symbols.
      decisions: Receives the comparisons.
    """
    _install_size_decisions()
    is_outermost = id(scope) not in _size_decisions
    _size_decisions[id(scope)] = decisions
    # The interpreter checks the comparisons of sizes that the program computes.
    scope.decisions = decisions
    try:
        yield
    finally:
        if is_outermost:
            del _size_decisions[id(scope)]


@contextlib.contextmanager
def assume_large_sizes() -> Iterator[None]:
    """Decide inconclusive inequalities of symbolic sizes as for large sizes."""
    _install_size_decisions()
    token = _are_sizes_large.set(True)
    try:
        yield
    finally:
        _are_sizes_large.reset(token)


def make_reading_context() -> Any:
    """Return an MLIR context for StableHLO modules from files.

    `mlir.make_ir_context` also imports dialects that these do not have, which takes longer than reading a small module.
    """
    make = getattr(mlir_lowering, "JaxIrContext", None)
    registry = getattr(mlir_lowering, "upstream_dialects", None)
    if make is None or registry is None:
        return mlir.make_ir_context()
    made = make()
    made.append_dialect_registry(registry)
    made.load_all_available_dialects()
    for dialect in (mlir_sdy, _mlir_chlo, mlir_hlo):
        dialect.register_dialect(made)
    return made


def count_scan_operands(params: Mapping[str, Any]) -> tuple[int, int]:
    """Count the constants and the carried operands of a `scan` equation, which precede its rows.

    Args:
      params: The equation's parameters.
    """
    if "ft_in" in params:  # JAX 0.11 and later
        consts, carry, _ = params["ft_in"].unpack()
        return len(consts), len(carry)
    return params["num_consts"], params["num_carry"]


def expand_high_level(equation: Any) -> Callable[..., Any] | None:
    """Return the function of arrays that a high-level equation is lowered to; None for other equations.

    Args:
      equation: An equation of a jaxpr.
    """
    if equation.primitive.name != "call_hi_primitive":  # JAX 0.12 and later
        return None
    return functools.partial(equation.primitive.to_lojax, **equation.params)


def read_ffi_version() -> tuple[int, int] | None:
    """Return the version of XLA's foreign function interface in jaxlib's headers; None where jaxlib has no headers."""
    header = LIBRARIES / "include" / "xla" / "ffi" / "api" / "c_api.h"
    if not header.exists():
        return None
    found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header.read_text()))
    return (int(found["MAJOR"]), int(found["MINOR"])) if len(found) == 2 else None


def call_before_cache_writes(function: Callable[[], None]) -> None:
    """Call a function before each compiled program is written to JAX's cache, in the thread that compiled it."""
    write = getattr(_compilation_cache, "put_executable_and_time", None)
    if write is None:
        return

    @functools.wraps(write)
    def call_and_write(*args: Any, **kwargs: Any) -> None:
        function()
        write(*args, **kwargs)

    _compilation_cache.put_executable_and_time = call_and_write


def make_exported(**fields: Any) -> Any:
    """Return a `jax.export.Exported` without named shardings.

    Args:
      **fields: Its fields, without `_has_named_shardings`, which JAX 0.10 has.
    """
    if any(f.name == "_has_named_shardings" for f in dataclasses.fields(jax.export.Exported)):
        fields["_has_named_shardings"] = False
    return jax.export.Exported(**fields)


def get_jaxpr_value(array: Any) -> Any:
    """Return the variable of the jaxpr that a tracer represents, or None; return arrays unchanged."""
    if not isinstance(array, jax.core.Tracer):
        return array
    value = getattr(array, "val", None)
    return value if isinstance(value, jex_core.Var) else None


def find_jaxpr_trace() -> Any:
    """Return the trace that collects equations now, or None if another transformation is innermost."""
    trace = _core.trace_ctx.trace
    return trace if type(trace) is _JaxprTrace and not trace.frame.auto_dce else None
