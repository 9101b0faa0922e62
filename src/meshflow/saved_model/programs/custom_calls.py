"""Signatures of the native code that programs from files may call, and the check of a parsed module.

The handlers of jaxlib trust their operands: a result that is smaller than the matrix demands is a write
outside of its buffer. Each custom call of a module must therefore match a line of `_TABLE`. A line has
the name of the call, conditions on its attributes, and the types of its operands and results::

    lapack_?getrf_ffi  : T[m,n] -> T[m,n] i32[min(m,n)] i32[]

* `?` in the name is one of s, d, c and z, the types of LAPACK, which determines `T`. Elsewhere `T` is
  any of the four types. `R` is its real type and `C` its complex type; `X` is any type.
* The sizes in brackets follow the batch sizes, which are the same for all operands and results of a
  call. A name has one value in a call; `min(m,n)` and `n-1` are computed. Parentheses are sizes without
  batch sizes.
* `uplo=LU` accepts the letters L and U, `lower=01` both truth values, `low=1` and `high=n` numbers.
  Attributes that no line names are refused, and `k<=n` is a condition on sizes.
* `!` after a type means that the call leaves the result undefined; nothing may use it. `~` means that it
  is undefined if the call fails, so its last result (`info`) is not 0: zeros replace it then.
* `@p` after an operand means that its values are indices of an axis of the first result, which are not
  checked by the handler; they are clamped.

Unlisted calls are refused: calls without a compatibility guarantee (`geqp3`, `gesvd` and `ormqr` on CPUs,
`tridiagonal_solve_perturbed_ffi`, sparse products), kernels inside a program (Mosaic, Pallas, Triton),
calls of TensorFlow and Python, and Meshflow's own handlers (`meshflow_*`), which JAX inserts when it
compiles a program and no saved program names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshflow.core.runtime.errors import InvalidArgumentError, OpError
from meshflow.environment.jax_internals import mlir, mlir_hlo, mlir_ir

_TABLE = """
lapack_?potrf_ffi uplo=LU : T[n,n] -> T[n,n] i32[]
lapack_?getrf_ffi : T[m,n] -> T[m,n] i32[min(m,n)] i32[]
lapack_?geqrf_ffi : T[m,n] -> T[m,n] T[min(m,n)]
lapack_[sd]orgqr_ffi k<=n n<=m : T[m,n] T[k] -> T[m,n]
lapack_[cz]ungqr_ffi k<=n n<=m : T[m,n] T[k] -> T[m,n]
lapack_?trsm_ffi side=L uplo=LU trans_x=NTC diag=NU : T[m,m] T[m,n] -> T[m,n]
lapack_?trsm_ffi side=R uplo=LU trans_x=NTC diag=NU : T[n,n] T[m,n] -> T[m,n]
lapack_?gesdd_ffi mode=A : T[m,n] -> T[m,n]~ R[min(m,n)]~ T[m,m]~ T[n,n]~ i32[]
lapack_?gesdd_ffi mode=S : T[m,n] -> T[m,n]~ R[min(m,n)]~ T[m,min(m,n)]~ T[min(m,n),n]~ i32[]
lapack_?gesdd_ffi mode=N : T[m,n] -> T[m,n]~ R[min(m,n)]~ T[m,m]! T[n,n]! i32[]
lapack_?gesdd_ffi mode=N : T[m,n] -> T[m,n]~ R[min(m,n)]~ T[m,min(m,n)]! T[min(m,n),n]! i32[]
lapack_[sd]syevd_ffi mode=NV uplo=LU : T[n,n] -> T[n,n]~ R[n]~ i32[]
lapack_[cz]heevd_ffi mode=NV uplo=LU : T[n,n] -> T[n,n]~ R[n]~ i32[]
lapack_[sd]geev_ffi compute_left=V compute_right=V : T[n,n] -> R[n]~ R[n]~ C[n,n]~ C[n,n]~ i32[]
lapack_[sd]geev_ffi compute_left=N compute_right=V : T[n,n] -> R[n]~ R[n]~ C[n,n]! C[n,n]~ i32[]
lapack_[sd]geev_ffi compute_left=V compute_right=N : T[n,n] -> R[n]~ R[n]~ C[n,n]~ C[n,n]! i32[]
lapack_[sd]geev_ffi compute_left=N compute_right=N : T[n,n] -> R[n]~ R[n]~ C[n,n]! C[n,n]! i32[]
lapack_[cz]geev_ffi compute_left=V compute_right=V : T[n,n] -> T[n]~ T[n,n]~ T[n,n]~ i32[]
lapack_[cz]geev_ffi compute_left=N compute_right=V : T[n,n] -> T[n]~ T[n,n]! T[n,n]~ i32[]
lapack_[cz]geev_ffi compute_left=V compute_right=N : T[n,n] -> T[n]~ T[n,n]~ T[n,n]! i32[]
lapack_[cz]geev_ffi compute_left=N compute_right=N : T[n,n] -> T[n]~ T[n,n]! T[n,n]! i32[]
lapack_[sd]gees_ffi mode=V sort=N : T[n,n] -> T[n,n]~ T[n,n]~ R[n]~ R[n]~ i32[]! i32[]
lapack_[sd]gees_ffi mode=N sort=N : T[n,n] -> T[n,n]~ T[n,n]! R[n]~ R[n]~ i32[]! i32[]
lapack_[cz]gees_ffi mode=V sort=N : T[n,n] -> T[n,n]~ T[n,n]~ T[n]~ i32[]! i32[]
lapack_[cz]gees_ffi mode=N sort=N : T[n,n] -> T[n,n]~ T[n,n]! T[n]~ i32[]! i32[]
lapack_[sd]sytrd_ffi uplo=LU : T[n,n] -> T[n,n] R[n]~ R[n-1]~ T[n-1]~ i32[]
lapack_[cz]hetrd_ffi uplo=LU : T[n,n] -> T[n,n] R[n]~ R[n-1]~ T[n-1]~ i32[]
lapack_?gehrd_ffi low=1 high=n : T[n,n] -> T[n,n] T[n-1]~ i32[]
lapack_?gtsv_ffi : T[n] T[n] T[n] T[n,r] -> T[n] T[n] T[n] T[n,r] i32[]

(cu|hip)solver_potrf_ffi lower=01 : T[n,n] -> T[n,n] i32[]
(cu|hip)solver_getrf_ffi : T[m,n] -> T[m,n] i32[min(m,n)] i32[]
(cu|hip)solver_geqrf_ffi : T[m,n] -> T[m,n] T[min(m,n)]
(cu|hip)solver_orgqr_ffi k<=n n<=m : T[m,n] T[k] -> T[m,n]
(cu|hip)solver_syevd_ffi algorithm=012 lower=01 : T[n,n] -> T[n,n]~ R[n]~ i32[]
(cu|hip)solver_sytrd_ffi lower=01 : T[n,n] -> T[n,n] R[n]~ R[n-1]~ T[n-1]~ i32[]
(cu|hip)solver_gesvdj_ffi full_matrices=1 compute_uv=01 : T[m,n] -> T[m,n]~ R[min(m,n)]~ T[m,m]~ T[n,n]~ i32[]
(cu|hip)solver_gesvdj_ffi full_matrices=0 compute_uv=01 : T[m,n] -> T[m,n]~ R[min(m,n)]~ T[m,min(m,n)]~ T[n,min(m,n)]~ i32[]
(cu|hip)solver_gesvd_ffi full_matrices=1 compute_uv=1 transposed=0 n<=m : T[m,n] -> T[m,n]~ R[n]~ T[m,m]~ T[n,n]~ i32[]
(cu|hip)solver_gesvd_ffi full_matrices=0 compute_uv=1 transposed=0 n<=m : T[m,n] -> T[m,n]~ R[n]~ T[m,n]~ T[n,n]~ i32[]
(cu|hip)solver_gesvd_ffi full_matrices=1 compute_uv=1 transposed=1 m<=n : T[m,n] -> T[m,n]~ R[m]~ T[n,n]~ T[m,m]~ i32[]
(cu|hip)solver_gesvd_ffi full_matrices=0 compute_uv=1 transposed=1 m<=n : T[m,n] -> T[m,n]~ R[m]~ T[m,n]~ T[m,m]~ i32[]
(cu|hip)solver_gesvd_ffi full_matrices=01 compute_uv=0 transposed=0 n<=m : T[m,n] -> T[m,n]~ R[n]~ T()! T()! i32[]
(cu|hip)solver_gesvd_ffi full_matrices=01 compute_uv=0 transposed=1 m<=n : T[m,n] -> T[m,n]~ R[m]~ T()! T()! i32[]
hipsolver_gesdd_ffi full_matrices=1 compute_uv=1 transposed=0 : T[m,n] -> T[m,n]~ R[min(m,n)]~ T[m,m]~ T[n,n]~ i32[]
hipsolver_gesdd_ffi full_matrices=0 compute_uv=1 transposed=0 : T[m,n] -> T[m,n]~ R[min(m,n)]~ T[m,min(m,n)]~ T[min(m,n),n]~ i32[]
hipsolver_gesdd_ffi full_matrices=01 compute_uv=0 transposed=0 : T[m,n] -> T[m,n]~ R[min(m,n)]~ T()! T()! i32[]
cusparse_gtsv2_ffi : T[n] T[n] T[n] T[n,r] -> T[n,r]
(cu|hip)_lu_pivots_to_permutation k<=p : i32[k]@p -> i32[p]
(cu|hip)_threefry2x32_ffi : ui32[] ui32[] ui32[] ui32[] -> ui32[] ui32[]

Eigh : T[n,n] -> T[n,n] R[n]
Qr : T[m,n] -> T[m,n] T[min(m,n)]
ProductOfElementaryHouseholderReflectors k<=n n<=m : T[m,n] T[k] -> T[m,n]
LuDecomposition : T[m,n] -> T[m,n] i32[min(m,n)] i32[m]
Sharding : X[] -> X[]
annotate_device_placement : X[] -> X[]
mhlo.erf : X[] -> X[]
mhlo.topk k<=n : X[n] -> X[k] i32[k]
"""
# Calls that XLA or StableHLO replace while they refine shapes, with their own checks, and the two whose
# operands a line of the table cannot describe.
_EXPANDED_CALLS = frozenset(
    ("shape_assertion", "ApproxTopK", "stablehlo.dynamic_approx_top_k", "stablehlo.dynamic_top_k")
    + ("stablehlo.dynamic_reduce_window", "stablehlo.dynamic_rng_bit_generator")
)
# Reserves memory without writing to it. Zeros replace it, because its content may be a secret.
_EMPTY_BUFFER = "AllocateBuffer"
_CALL = "stablehlo.custom_call"
_FUNCTION, _MESH = "func.func", "sdy.mesh"
# Operations outside of these dialects are refused, those that exchange data with the host, tuples, and sizes
# that are only bounded while the program is compiled; JAX exports none of them. So are nested modules and
# conversions between types, which are operations of the dialect `builtin`.
_DIALECTS = frozenset(("func", "stablehlo", "chlo", "sdy"))
_REFUSED_OPERATIONS = frozenset(
    f"stablehlo.{name}"
    for name in (
        "send",
        "recv",
        "infeed",
        "outfeed",
        "tuple",
        "get_tuple_element",
        "set_dimension_size",
    )
)
# Attributes that name functions, by the operation.
_SYMBOL_ATTRIBUTES = {
    "func.call": "callee",
    "stablehlo.composite": "decomposition",
    _CALL: "called_computations",
}
# Largest inlined program. XLA overflows a stack of 8 MB at 190 nested calls.
_MAX_OPERATIONS, _MAX_LEVELS, _MAX_CALLS = 2_000_000, 200, 64
# Attributes of a call that only affect layouts, shardings and messages.
_CALL_ATTRIBUTES = frozenset(
    ("call_target_name", "api_version", "backend_config", "mhlo.backend_config", "has_side_effect")
    + ("operand_layouts", "result_layouts", "output_operand_aliases", "indices_of_shape_operands")
    + ("mhlo.frontend_attributes", "mhlo.sharding", "sdy.sharding", "sdy.sharding_rule")
    + (
        "called_computations",
        "error_message",
        "mhlo.attributes",
        "mhlo.version",
        "mhlo.layout_mode",
    )
)
_FRONTEND_ATTRIBUTE = re.compile("num_batch_dims|_xla_buffer_placement")
# XLA reads these as text of MLIR, and does not check that it is valid. JAX exports them in another form.
_SHARDING_PREFIX = "xla.sdy."
_REAL_TYPES = {"s": "f32", "d": "f64", "c": "f32", "z": "f64"}
_LETTERS = {"f32": "s", "f64": "d", "complex<f32>": "c", "complex<f64>": "z"}
_TYPE = re.compile(r"(\w+)([\[(])(.*?)[\])]([!~]?|@\w+)$")
_CONDITION = re.compile(r"(\w+)(<=|=)(\w+)$")


@dataclasses.dataclass(frozen=True)
class _TensorPattern:
    """Type of an operand or result in the table."""

    element: str
    sizes: tuple[str, ...]
    is_batched: bool
    mark: str

    @classmethod
    def from_text(cls, text: str) -> _TensorPattern:
        """Parse a type such as `T[m,min(m,n)]~`."""
        element, bracket, sizes, mark = _TYPE.match(text).groups()  # type: ignore[union-attr]
        parts = tuple(re.findall(r"min\(\w+,\w+\)|[^,]+", sizes))
        return cls(element, parts, bracket == "[", mark)


@dataclasses.dataclass(frozen=True)
class _CallPattern:
    """Line of the table.

    Attributes:
      text: The line.
      name: Pattern of the call's name. Its group `letter` determines the dtype, if it has one.
      attributes: Accepted values by the attribute's name.
      limits: Pairs of sizes, of which the first must not exceed the second.
      operands: Types of the operands.
      results: Types of the results.
    """

    text: str
    name: re.Pattern[str]
    attributes: Mapping[str, str]
    limits: Sequence[tuple[str, str]]
    operands: Sequence[_TensorPattern]
    results: Sequence[_TensorPattern]

    @classmethod
    def from_text(cls, line: str) -> _CallPattern:
        """Parse a line."""
        head, types = line.split(" : ")
        name, *conditions = head.split()
        pattern = name.replace("?", "[sdcz]").replace(".", r"\.")
        pattern = re.sub(r"\[\w+\]", lambda m: f"(?P<letter>{m[0]})", pattern)
        parts = [_CONDITION.match(c).groups() for c in conditions]  # type: ignore[union-attr]
        operands, results = (
            [_TensorPattern.from_text(t) for t in side.split()] for side in types.split(" -> ")
        )
        return cls(
            line,
            re.compile(pattern),
            {left: right for left, relation, right in parts if relation == "="},
            [(left, right) for left, relation, right in parts if relation == "<="],
            operands,
            results,
        )


_SIGNATURES = [_CallPattern.from_text(line) for line in _TABLE.splitlines() if line]


class _Mismatch(Exception):
    """The reason for which a call does not match a line."""


class _Matcher:
    """Comparison of one call with one line.

    Args:
      signature: The line.
      letter: Letter of the dtype in the name of the call, or None.
      is_static: Whether unknown sizes are refused.
    """

    def __init__(self, signature: _CallPattern, letter: str | None, is_static: bool) -> None:
        self._signature, self._letter, self._is_static = signature, letter, is_static
        self._element: str | None = None
        self._sizes: dict[str, int | None] = {}
        self._batch: list[int | None] | None = None

    def match(self, call: Any, attributes: Mapping[str, Any]) -> None:
        """Raise `_Mismatch` unless the call matches."""
        signature = self._signature
        values = list(call.operands) if self._is_static else _drop_shape_operands(call)
        operands = [v.type for v in values]
        results = [r.type for r in call.results]
        for kind, patterns, types in (
            ("operands", signature.operands, operands),
            ("results", signature.results, results),
        ):
            if len(types) != len(patterns):
                raise _Mismatch(f"it has {len(types)} {kind}, not {len(patterns)}")
            for pattern, found in zip(patterns, types, strict=True):
                self._match_type(pattern, found)
        for left, right in signature.limits:
            smaller, larger = self._sizes[left], self._sizes[right]
            if smaller is not None and larger is not None and smaller > larger:
                raise _Mismatch(f"the size {left}={smaller} exceeds {right}={larger}")
        self._match_attributes(attributes)
        for pattern, result in zip(signature.results, call.results, strict=True):
            if pattern.mark == "!" and next(iter(result.uses), None) is not None:
                raise _Mismatch("it uses a result that the call leaves undefined")
        self._match_aliases(call)

    def _match_type(self, pattern: _TensorPattern, found: Any) -> None:
        if not isinstance(found, mlir_ir.RankedTensorType):
            raise _Mismatch(f"{found} is no array of a known rank")
        if not self._match_element(pattern.element, str(found.element_type)):
            raise _Mismatch(f"{found} has another dtype than {pattern.element}")
        sizes = [None if found.is_dynamic_dim(i) else s for i, s in enumerate(found.shape)]
        if self._is_static and None in sizes:
            raise _Mismatch(f"{found} has an unknown size")
        num_batch = len(sizes) - len(pattern.sizes)
        if num_batch < 0 or (num_batch and not pattern.is_batched):
            raise _Mismatch(f"{found} has another rank than {list(pattern.sizes)}")
        if pattern.is_batched:
            batch = sizes[:num_batch]
            self._batch = batch if self._batch is None else self._batch
            if not _are_compatible(self._batch, batch):
                raise _Mismatch(f"{found} has other batch sizes than {self._batch}")
        for text, size in zip(pattern.sizes, sizes[num_batch:], strict=True):
            expected = self._compute_size(text, size)
            if not _are_compatible([expected], [size]):
                raise _Mismatch(f"{found} has the size {size}, not {text}={expected}")

    def _match_element(self, expected: str, found: str) -> bool:
        if expected == "X":
            self._element = self._element or found
            return found == self._element
        if expected == "T":
            self._letter = self._letter or _LETTERS.get(found)
            return self._letter is not None and _LETTERS.get(found) == self._letter
        if expected in ("R", "C"):
            real = _REAL_TYPES[self._letter] if self._letter else None
            return found == (real if expected == "R" else f"complex<{real}>")
        return found == expected

    def _compute_size(self, text: str, size: int | None) -> int | None:
        """Return the value of a size; a name without a value receives `size`."""
        if minimum := re.fullmatch(r"min\((\w+),(\w+)\)", text):
            values = [self._sizes[name] for name in minimum.groups()]
            return None if None in values else min(v for v in values if v is not None)
        if text.endswith("-1"):
            value = self._sizes[text.removesuffix("-1")]
            return None if value is None else value - 1
        if self._sizes.get(text) is None:
            self._sizes[text] = size
        return self._sizes[text]

    def _match_attributes(self, attributes: Mapping[str, Any]) -> None:
        accepted = self._signature.attributes
        if unknown := sorted(set(attributes) ^ set(accepted)):
            raise _Mismatch(f"its attributes are {sorted(attributes)}; {unknown} differ")
        for name, texts in accepted.items():
            attribute, size = attributes[name], self._sizes.get(texts)
            if not isinstance(attribute, (mlir_ir.IntegerAttr, mlir_ir.BoolAttr)):
                raise _Mismatch(f"its attribute {name} is {attribute}")
            value = int(attribute.value)
            if texts in self._sizes:
                is_accepted = size in (None, value)
            else:
                is_accepted = value in {int(t) if t.isdigit() else ord(t) for t in texts}
            if not is_accepted:
                raise _Mismatch(f"its attribute {name} is {value}, not one of {texts}")

    def _match_aliases(self, call: Any) -> None:
        """Check that results share the memory of operands of the same type only."""
        if "output_operand_aliases" not in call.attributes:
            return
        operands, results = set(), set()
        for alias in mlir_ir.ArrayAttr(call.attributes["output_operand_aliases"]):
            alias = mlir_hlo.OutputOperandAlias(alias)
            indices, operand_index = list(alias.output_tuple_indices), alias.operand_index
            result_index = indices[0] if indices else 0
            is_valid = (
                len(indices) <= 1
                and operand_index not in operands
                and result_index not in results
                and not list(alias.operand_tuple_indices)
                and 0 <= operand_index < len(self._signature.operands)
                and 0 <= result_index < len(call.results)
                and call.operands[operand_index].type == call.results[result_index].type
            )
            if not is_valid:
                raise _Mismatch(
                    "a result shares the memory of an operand of another type, or of another result"
                )
            operands.add(operand_index)
            results.add(result_index)


def _are_compatible(left: Sequence[int | None], right: Sequence[int | None]) -> bool:
    return len(left) == len(right) and all(
        None in pair or pair[0] == pair[1] for pair in zip(left, right, strict=True)
    )


def _iterate_operations(root: Any) -> Iterator[tuple[Any, int]]:
    """Yield all operations of an operation's regions with the number of regions around them."""
    operations = [(root.operation, 0)]
    while operations:
        operation, depth = operations.pop()
        yield operation, depth
        operations += [
            (op.operation, depth + 1) for r in operation.regions for block in r for op in block
        ]


def _iterate_calls(module: Any) -> Iterator[Any]:
    return (op for op, _ in _iterate_operations(module) if op.name == _CALL)


def _get_call_name(operation: Any) -> str:
    return str(mlir_ir.StringAttr(operation.attributes["call_target_name"]).value)


def _drop_shape_operands(call: Any) -> list[Any]:
    """Return the operands of a call without those that are sizes of its results."""
    key = "indices_of_shape_operands"
    indices = set(call.attributes[key]) if key in call.attributes else ()
    return [v for i, v in enumerate(call.operands) if i not in indices]


def _get_attribute_names(operation: Any) -> set[str]:
    # An iteration yields names, or in older versions of jaxlib named attributes.
    return {getattr(name, "name", name) for name in operation.attributes}


def _read_frontend_names(operation: Any) -> list[str]:
    """Return the names of the frontend attributes of an operation.

    Raises:
      InvalidArgumentError: If they describe shardings as text.
    """
    if "mhlo.frontend_attributes" not in operation.attributes:
        return []
    frontend = mlir_ir.DictAttr(operation.attributes["mhlo.frontend_attributes"])
    names = [frontend[i].name for i in range(len(frontend))]
    if any(name.startswith(_SHARDING_PREFIX) for name in names):
        raise InvalidArgumentError(
            f"A saved program has the frontend attributes {names}, which saved models may not have."
        )
    return names


def has_native_calls(module: Any) -> bool:
    """Check whether a module calls native code whose sizes must be known.

    Args:
      module: The MLIR module.
    """
    with _translate_errors():
        names = map(_get_call_name, _iterate_calls(module))
        return any(name not in (*_EXPANDED_CALLS, _EMPTY_BUFFER) for name in names)


def check_module(module: Any, is_static: bool = False) -> None:
    """Check that a module has only known operations and calls only known native code, correctly.

    Args:
      module: The MLIR module.
      is_static: Whether all sizes must be known, as they are when the module is compiled.

    Raises:
      InvalidArgumentError: If a custom call is not in the table, or if its operands, results or
        attributes differ from the table.
    """
    with _translate_errors():
        _check_operations(module, is_static)


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Translate the errors of MLIR's bindings, which are RuntimeErrors for names that are not UTF-8."""
    try:
        yield
    except OpError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, RuntimeError) as error:
        raise InvalidArgumentError(
            f"A saved function has names or attributes of another kind than StableHLO: {error}"
        ) from error


def _check_operations(module: Any, is_static: bool) -> None:
    functions: dict[str, _FunctionSize] = {}
    _read_frontend_names(module.operation)
    for root in module.body:
        if root.operation.name not in (_FUNCTION, _MESH):
            raise InvalidArgumentError(
                f"A saved program has {root.operation.name}, and may only have functions and meshes."
            )
        size = _FunctionSize()
        for operation, depth in _iterate_operations(root):
            name = operation.name
            _read_frontend_names(operation)
            if name == _CALL:
                _check_call(operation, is_static)
            elif name.partition(".")[0] not in _DIALECTS or name in _REFUSED_OPERATIONS:
                raise InvalidArgumentError(
                    f"A saved function has the operation {name}, which saved models may not have."
                )
            size.add(operation, name, depth)
        if root.operation.name == _FUNCTION:
            if not len(root.operation.regions[0].blocks):
                raise InvalidArgumentError(
                    f"A saved program has a function without a body: {root.operation.attributes['sym_name']}."
                )
            kind = str(root.operation.attributes["function_type"])
            if "tuple<" in kind or "#stablehlo.bounds" in kind:
                raise InvalidArgumentError(
                    f"A saved function has a tuple, or a size with a bound, as an argument or result: {kind}."
                )
            functions[str(mlir_ir.StringAttr(root.operation.attributes["sym_name"]).value)] = size
    _check_call_graph(functions)


class _FunctionSize:
    """Number and depth of the operations of a function, and the functions that it calls."""

    def __init__(self) -> None:
        self.num_operations, self.depth = 0, 0
        # Names of the called functions, with the number of regions around the call.
        self.callees: list[tuple[str, int]] = []

    def add(self, operation: Any, name: str, depth: int) -> None:
        """Count an operation."""
        self.num_operations, self.depth = self.num_operations + 1, max(self.depth, depth)
        if (key := _SYMBOL_ATTRIBUTES.get(name)) is None or key not in operation.attributes:
            return
        found = operation.attributes[key]
        symbols = list(found) if isinstance(found, mlir_ir.ArrayAttr) else [found]
        for symbol in symbols:
            self.callees.append((str(mlir_ir.FlatSymbolRefAttr(symbol).value), depth))


def _check_call_graph(functions: Mapping[str, _FunctionSize]) -> None:
    """Check that calls end, and that XLA can inline them.

    XLA recurses into functions and regions, so a deep module would overflow its stack.

    Raises:
      InvalidArgumentError: If a function calls itself or a missing function, or if the inlined program
        has too many operations or levels.
    """
    # Operations, levels and nested calls of each function with its calls inlined; None during the visit.
    totals: dict[str, tuple[int, int, int] | None] = {}

    def measure(name: str, level: int) -> tuple[int, int, int]:
        if name not in functions:
            raise InvalidArgumentError(f"A saved function calls the missing function {name!r}.")
        if name in totals:
            if (total := totals[name]) is None:
                raise InvalidArgumentError(f"A saved function calls itself: {name!r}.")
            return total
        size, totals[name] = functions[name], None
        count, depth, num_calls = size.num_operations, size.depth, 0
        # Each level of calls is a level of this recursion, too.
        for callee, callee_depth in size.callees if level <= _MAX_CALLS else ():
            inner_count, inner_depth, inner_calls = measure(callee, level + 1)
            count, num_calls = count + inner_count, max(num_calls, inner_calls + 1)
            depth = max(depth, callee_depth + inner_depth)
        if count > _MAX_OPERATIONS or depth > _MAX_LEVELS or max(level, num_calls) > _MAX_CALLS:
            raise InvalidArgumentError(
                f"A saved function is too deep or too large: with its calls inlined, it has at least {count:,} operations, "
                f"{depth} levels, and {max(level, num_calls)} nested calls. The limits are {_MAX_OPERATIONS:,}, "
                f"{_MAX_LEVELS} and {_MAX_CALLS}."
            )
        totals[name] = count, depth, num_calls
        return count, depth, num_calls

    for name in functions:
        measure(name, 0)


def _check_call(call: Any, is_static: bool) -> None:
    name = _get_call_name(call)
    signatures = [(s, match) for s in _SIGNATURES if (match := s.name.fullmatch(name))]
    if not signatures and name not in _EXPANDED_CALLS and name != _EMPTY_BUFFER:
        raise InvalidArgumentError(
            f"A saved function calls native code that saved models may not call: {name!r}."
        )
    reasons = []
    try:
        attributes = _read_attributes(call, name)
        if not signatures:
            _check_expanded_call(call, name)
        for signature, match in signatures:
            try:
                letter = match.groupdict().get("letter")
                return _Matcher(signature, letter, is_static).match(call, attributes)
            except _Mismatch as mismatch:
                reasons.append(f"{signature.text}: {mismatch}")
    except _Mismatch as mismatch:
        reasons.append(str(mismatch))
    if reasons:
        raise InvalidArgumentError(
            f"A saved function calls {name} with operands or results that it does not take. Expected one of\n  "
            + "\n  ".join(reasons)
        )
    return None


def _read_attributes(call: Any, name: str) -> dict[str, Any]:
    """Return the attributes that the handler of a call receives."""
    names = _get_attribute_names(call)
    unknown = sorted(names - _CALL_ATTRIBUTES)
    if unknown and name not in _EXPANDED_CALLS:
        raise _Mismatch(f"it has the attributes {unknown}")
    functions = call.attributes["called_computations"] if "called_computations" in names else []
    if len(functions) and name not in _EXPANDED_CALLS:
        raise _Mismatch("it calls functions of the program")
    keys = _read_frontend_names(call)
    if not all(map(_FRONTEND_ATTRIBUTE.fullmatch, keys)):
        raise _Mismatch(f"it has the frontend attributes {keys}")
    configurations = [k for k in ("mhlo.backend_config", "backend_config") if k in names]
    if not name.endswith("_ffi") and not name.endswith("_permutation"):
        # XLA expands these calls and checks their configuration.
        return {}
    found = [call.attributes[k] for k in configurations]
    if len(found) != 1 or not isinstance(found[0], mlir_ir.DictAttr):
        raise _Mismatch("it has no dictionary of attributes")
    (dictionary,) = found
    entries = [dictionary[i] for i in range(len(dictionary))]
    return {entry.name: entry.attr for entry in entries}


def _check_expanded_call(call: Any, name: str) -> None:
    """Check the calls that XLA replaces as far as it does not."""
    types = [v.type for v in (*call.operands, *call.results)]
    if not all(isinstance(t, mlir_ir.RankedTensorType) for t in types):
        raise _Mismatch("it has operands that are no arrays of known ranks")
    operands, results = [v.type for v in call.operands], [r.type for r in call.results]
    if name == _EMPTY_BUFFER:
        if operands or len(results) != 1 or not results[0].has_static_shape:
            raise _Mismatch("it has operands, or not one result of a known size")
    elif name == "shape_assertion":
        if results or not operands or any(t.rank for t in operands):
            raise _Mismatch("it has results, or operands that are no scalars")
    elif name == "ApproxTopK":
        ranks = [v.type.rank for v in _drop_shape_operands(call)]
        rank = ranks[0] if ranks else 0
        if ranks != [rank, rank, 0, 0] or [t.rank for t in results] != [rank, rank]:
            raise _Mismatch("it has other operands than values, indices and two initial values")


def secure_calls(module: Any) -> None:
    """Change the calls of a module that `check_module` accepted so that they disclose no memory.

    Zeros replace buffers that were only reserved, and results of linear algebra that failed. Indices
    that a handler does not check are clamped.

    Args:
      module: The MLIR module.
    """
    for call in list(_iterate_calls(module)):
        name = _get_call_name(call)
        if name == _EMPTY_BUFFER:
            with mlir_ir.InsertionPoint(call), call.location:
                call.results[0].replace_all_uses_with(_make_zeros(call.results[0].type))
            call.erase()
            continue
        signature = next((s for s in _SIGNATURES if s.name.fullmatch(name)), None)
        types = [mlir_ir.RankedTensorType(r.type) for r in call.results]
        # A program of any size is only compiled after its specialization, which is changed then.
        if signature is None or not all(t.has_static_shape for t in types):
            continue
        if any(r.mark == "~" for r in signature.results):
            _mask_failures(call, signature.results)
        if any(o.mark.startswith("@") for o in signature.operands):
            _clamp_indices(call)


def _mask_failures(call: Any, patterns: Sequence[_TensorPattern]) -> None:
    """Replace the results that are undefined if the last result is not 0."""
    info = call.results[len(call.results) - 1]
    info_shape = list(mlir_ir.RankedTensorType(info.type).shape)
    flag = mlir_ir.IntegerType.get_signless(1)
    for result, pattern in zip(call.results, patterns, strict=True):
        if pattern.mark != "~" or next(iter(result.uses), None) is None:
            continue
        shape = list(mlir_ir.RankedTensorType(result.type).shape)
        with mlir_ir.InsertionPoint.after(call), call.location:
            equal = mlir_hlo.ComparisonDirectionAttr.get("EQ")
            succeeded = mlir_hlo.compare(info, _make_zeros(info.type), equal)
            mask = mlir_hlo.broadcast_in_dim(
                mlir_ir.RankedTensorType.get(shape, flag),
                succeeded,
                mlir.dense_int_array(list(range(len(info_shape)))),
            )
            selected = mlir_hlo.select(mask, result, _make_zeros(result.type))
        result.replace_all_uses_except(selected, selected.owner.operation)


def _clamp_indices(call: Any) -> None:
    """Limit the indices of the first operand to the last axis of the first result."""
    size = list(mlir_ir.RankedTensorType(call.results[0].type).shape)[-1]
    with mlir_ir.InsertionPoint(call), call.location:
        limits = [
            mlir_hlo.constant(mlir_ir.Attribute.parse(f"dense<{value}> : tensor<i32>"))
            for value in (0, max(size - 1, 0))
        ]
        indices = call.operands[0]
        call.operands[0] = mlir_hlo.clamp(limits[0], indices, limits[1])


def _make_zeros(kind: Any) -> Any:
    """Create zeros of a static type at the insertion point."""
    tensor = mlir_ir.RankedTensorType(kind)
    element = tensor.element_type
    if isinstance(element, mlir_ir.ComplexType):
        part = _make_zeros(mlir_ir.RankedTensorType.get(tensor.shape, element.element_type))
        return mlir_hlo.complex(part, part)
    zero = "0.0"
    if isinstance(element, mlir_ir.IntegerType):
        zero = "false" if element.width == 1 else "0"
    return mlir_hlo.constant(mlir_ir.Attribute.parse(f"dense<{zero}> : {kind}"))
