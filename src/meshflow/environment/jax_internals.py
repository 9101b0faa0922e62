"""The one door to names of JAX that its stable interface leaves out.

No other file imports from `jax._src`, `jax.interpreters`, `jax.extend` or `jaxlib`, so that a new JAX is looked at
here first. What each is for, and what in public would take its place:

* `distributed`, `runtime`: JAX's coordination service started by whom we choose, its clients, collectives over TCP,
  barriers with a time limit. Public: `jax.distributed.initialize` with a service in another process, and a limit
  in `jax.experimental.multihost_utils`.
* `xla_bridge`: whether devices were handed out (`jax.devices()` would do it), and the CPU client with those
  collectives. Public: the question in `jax.extend.backend`, and an argument of `jax.distributed.initialize`.
* `eager_constant_folding`: a trace within `jax.ensure_compile_time_eval` that stays a trace. Public: its opposite.
* `trace_state_clean`: whether a transformation of JAX's own is under way, asked for every element of a dataset.
  Public: the same name in `jax.core`, which JAX took back.
* `cache_key`: what compiled programs are kept under, to which names of layers are added. Public:
  `jax_compilation_cache_include_metadata_in_key`, which adds lines of source too.
* `persistent_cache_min_compile_time_secs`: how long a program must take to be kept, in a `with` block. Public: the
  option for the whole process.
* `parse_flatten_op_sharding`: how the operands of a lowering are divided, which come as XLA's shardings. Public:
  `NamedSharding`s in the callbacks of `jax.experimental.custom_partitioning`.
* `ad`, `batching`, `mlir`: derivatives, batching and lowerings of our own primitives. Public: their registration in
  `jax.extend`.
* `common_lowerings`, `platform_lowerings`, `needs_devices_when_lowered`: JAX's own lowerings, which ours fall back
  on, and which of them ask for the devices. Public: functions that give a primitive's lowering, and an argument
  of its registration.
* `dce_jaxpr`: a jaxpr without what some of its results do not need. Public: none.
* `jex_backend`, `jex_core`, `jex_primitives`, `source_info_util`: devices of another number, jaxprs and primitives,
  all primitives by name, lines of users' programs. These are public, in `jax.extend`, but may change in any version.
* `mlir_ir`, `mlir_func`, `mlir_hlo`, `mlir_passes`, `read_portable_artifact`, `write_portable_artifact`,
  `refine_polymorphic_shapes`: programs of StableHLO that TensorFlow's files hold without what `jax.export` writes beside them: read, given known
  sizes, written. Public: a function of `jax.export` that takes the program alone.
* `mlir_sdy`: arrays that the partitioner divides alike. Public: `jax.experimental.shard_alike`, before JAX 0.11.
* `LIBRARIES`: the folder of XLA's libraries, in whose memory huge pages are asked for. Public: nothing.
* `JAXLIB_VERSION`, `read_ffi_version`: the version of jaxlib, and that of XLA's foreign function interface, of which an
  older one refuses kernels that were compiled with newer headers. Public: the version of jaxlib.

`SUPPORTED` is the range of versions of JAX and jaxlib, `DIFFERENCES` the table of differences between them. Three of them are handled here:
`count_scan_operands` reads the parameters of `scan`, `expand_high_level` expands `call_hi_primitive`, and
`make_exported` fills the fields of `jax.export.Exported`.

What may be missing, as there is a slower public way:

* `batched_device_put`: what `jax.device_put` ends in, without 30 us of looking at its arguments.
* `copy_to_devices`, `array_copy_semantics`: a copy on the same devices; `jax.numpy.copy` compiles a program for each
  shape.
* `collect_garbage`: has device arrays that ended let go of the host arrays whose memory they shared.
* `read_from_device`: an array's value that JAX does not keep beside the array, as `numpy.asarray` has it do.
* `renew_gpu_options`: has a GPU's client that is started again read the variables about its memory again. Public:
  nothing.
* `mlir_lowering`: what makes the MLIR context of each program that is lowered. Public: nothing.
* `export_lowering`: what lowers programs of `jax.export`, for which JAX imports SciPy. Public: nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

__all__ = [
    "DIFFERENCES",
    "DeviceArray",
    "JAXLIB_VERSION",
    "LIBRARIES",
    "SizeDecisions",
    "SUPPORTED",
    "ad",
    "array_copy_semantics",
    "batched_device_put",
    "batching",
    "cache_key",
    "collect_garbage",
    "common_lowerings",
    "copy_to_devices",
    "count_scan_operands",
    "decide_sizes_by_hints",
    "dce_jaxpr",
    "distributed",
    "eager_constant_folding",
    "expand_high_level",
    "export_lowering",
    "jex_backend",
    "jex_core",
    "jex_primitives",
    "make_exported",
    "mlir",
    "mlir_func",
    "mlir_hlo",
    "mlir_ir",
    "mlir_lowering",
    "mlir_passes",
    "mlir_sdy",
    "needs_devices_when_lowered",
    "parse_flatten_op_sharding",
    "persistent_cache_min_compile_time_secs",
    "platform_lowerings",
    "read_ffi_version",
    "read_from_device",
    "read_portable_artifact",
    "refine_polymorphic_shapes",
    "renew_gpu_options",
    "runtime",
    "source_info_util",
    "trace_state_clean",
    "write_portable_artifact",
    "xla_bridge",
]

# As in pyproject.toml.
SUPPORTED = ">=0.10,<0.13"


class Difference(NamedTuple):
    """A difference between versions of JAX that Meshflow handles.

    Attributes:
      version: the first version of JAX with the new behaviour.
      change: what is new.
      handled_by: the function or the file of the repository that handles both.
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
    Difference("0.12", "XLA's foreign function interface has version 0.5.", "`kernels/library.py`"),
)  # fmt: skip

try:
    import jaxlib
    from jax._src import array as _array
    from jax._src import cache_key, distributed, xla_bridge
    from jax._src import dispatch as _dispatch
    from jax._src.config import eager_constant_folding, persistent_cache_min_compile_time_secs
    from jax._src.core import trace_state_clean
    from jax._src.export import _export
    from jax._src.export import shape_poly as _shape_poly
    from jax._src.interpreters import mlir as mlir_lowering
    from jax._src.interpreters.mlir import refine_polymorphic_shapes
    from jax._src.interpreters.partial_eval import dce_jaxpr
    from jax._src.lib import _jax as runtime
    from jax._src.lib import xla_client as _xla_client
    from jax._src.lib.mlir import ir as mlir_ir
    from jax._src.lib.mlir import passmanager as mlir_passes
    from jax._src.lib.mlir.dialects import func as mlir_func
    from jax._src.lib.mlir.dialects import hlo as mlir_hlo
    from jax._src.lib.mlir.dialects import sdy as mlir_sdy
    from jax._src.sharding_impls import parse_flatten_op_sharding
    from jax.extend import backend as jex_backend
    from jax.extend import core as jex_core
    from jax.extend import source_info_util
    from jax.extend.core import primitives as jex_primitives
    from jax.interpreters import ad, batching, mlir

    common_lowerings: Any = mlir._lowerings
    platform_lowerings: Any = mlir._platform_specific_lowerings
    read_portable_artifact: Any = runtime.mlir.deserialize_portable_artifact
    write_portable_artifact: Any = _export._module_to_bytecode
    export_lowering: Any = _export
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
    """Has the clients of GPUs that are started from now on read XLA's variables again, which JAX does once."""
    make = getattr(_xla_client, "generate_pjrt_gpu_plugin_options", None)
    found = getattr(xla_bridge, "_backend_factories", {}).get("cuda")
    options = getattr(getattr(found, "factory", None), "keywords", {}).get("options")
    if make is not None and isinstance(options, dict):
        renewed = make()
        options.clear()
        options.update(renewed)


class SizeDecisions:
    """Comparisons of symbolic sizes whose results depend on the values of the symbols.

    Args:
      hints: Values of the symbols, by name, that determine the results.
    """

    def __init__(self, hints: Mapping[str, int]) -> None:
        self.hints = dict(hints)
        self._results: dict[tuple[str, str], bool] = {}

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
            # Sizes that may differ are different, as JAX assumes.
            result = relation == ">=" and int(difference._evaluate(self.hints)) >= 0
            self._results[key] = result
        return result

    def format(self) -> list[str]:
        """Return the comparisons as Python expressions that are true if the results are the same."""
        return [
            f"({difference.replace('^', '**')} {relation} 0) is {result}"
            for (difference, relation), result in self._results.items()
        ]


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

    def compare_equal(self: Any, other: Any) -> bool:
        result: bool = is_equal(self, other)
        if result or not _size_decisions or (decisions := _find_decisions(self)) is None:
            return result
        if isinstance(other, _shape_poly._DimExpr):
            if other.scope is not self.scope:
                return False
        elif not isinstance(other, (int, np.integer)):
            return False
        difference = self - other
        is_known = not isinstance(difference, _shape_poly._DimExpr)
        return False if is_known else decisions.decide(difference, "==")

    def compare_greater_or_equal(left: Any, right: Any, describe: Callable[[], str]) -> bool:
        decisions = _find_decisions(left, right) if _size_decisions else None
        if decisions is None:
            return bool(is_greater_or_equal(left, right, describe))
        with contextlib.suppress(_shape_poly.InconclusiveDimensionOperation):
            return bool(is_greater_or_equal(left, right, describe))
        return decisions.decide(left - right, ">=")

    _shape_poly._DimExpr.__eq__ = compare_equal
    _shape_poly._geq_decision = compare_greater_or_equal


@contextlib.contextmanager
def decide_sizes_by_hints(scope: Any, decisions: SizeDecisions) -> Iterator[None]:
    """Decide inconclusive comparisons of symbolic sizes by hints, and record them.

    Args:
      scope: The `jax.export.SymbolicScope` of the symbols.
      decisions: Receives the comparisons.
    """
    _install_size_decisions()
    _size_decisions[id(scope)] = decisions
    try:
        yield
    finally:
        del _size_decisions[id(scope)]


def count_scan_operands(params: Mapping[str, Any]) -> tuple[int, int]:
    """Count the constants and the carried operands of a `scan` equation, which precede its rows.

    Args:
      params: the equation's parameters.
    """
    if "ft_in" in params:  # from JAX 0.11 on
        consts, carry, _ = params["ft_in"].unpack()
        return len(consts), len(carry)
    return params["num_consts"], params["num_carry"]


def expand_high_level(equation: Any) -> Callable[..., Any] | None:
    """Return the function of arrays that a high-level equation is lowered to; None for other equations.

    Args:
      equation: an equation of a jaxpr.
    """
    if equation.primitive.name != "call_hi_primitive":  # from JAX 0.12 on
        return None
    return functools.partial(equation.primitive.to_lojax, **equation.params)


def read_ffi_version() -> tuple[int, int] | None:
    """Return the version of XLA's foreign function interface in jaxlib's headers; None where jaxlib has no headers."""
    header = LIBRARIES / "include" / "xla" / "ffi" / "api" / "c_api.h"
    if not header.exists():
        return None
    found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header.read_text()))
    return (int(found["MAJOR"]), int(found["MINOR"])) if len(found) == 2 else None


def make_exported(**fields: Any) -> Any:
    """Return a `jax.export.Exported` without named shardings.

    Args:
      **fields: its fields, without `_has_named_shardings`, which JAX 0.10 has.
    """
    if any(f.name == "_has_named_shardings" for f in dataclasses.fields(jax.export.Exported)):
        fields["_has_named_shardings"] = False
    return jax.export.Exported(**fields)
