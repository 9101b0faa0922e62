"""Conversion of op arguments to tensors of matching dtypes and to hashable static values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime import errors
from meshflow.core.values import convert
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, float32, int64, string
from meshflow.core.values.shapes import TensorShape, as_shape
from meshflow.core.values.tensor import Tensor, TensorLike, read_tensor
from meshflow.core.values.unknown_sizes import read_sizes
from meshflow.environment.types import PyTree


def flatten_tensors(operands: Iterable[Any]) -> list[Tensor]:
    """Return the tensors of an operand list, in JAX's pytree order."""
    tensors: list[Tensor] = []
    for operand in operands:
        if isinstance(operand, (list, tuple)):
            tensors.extend(flatten_tensors(operand))
        elif operand is not None:
            tensors.append(operand)
    return tensors


# TensorFlow's types of the ops of operators, for messages.
_OP_TYPES = {
    "add": "AddV2",
    "floordiv": "FloorDiv",
    "floormod": "FloorMod",
    "matmul": "MatMul",
    "multiply": "Mul",
    "pow": "Pow",
    "subtract": "Sub",
    "truediv": "RealDiv",
}


def make_dtype_mismatch_error(
    name: str, index: int, expected: DType, got: DType
) -> errors.DtypeMismatchError:
    """Return the error for operands of different dtypes."""
    name = _OP_TYPES.get(name, name)
    return errors.DtypeMismatchError(
        f"cannot compute {name} as input #{index}(zero-based) was expected to be a {expected.name} "
        f"tensor but is a {got.name} tensor [Op:{name}]. Use tf.cast to convert one of them."
    )


def get_strings(value: TensorLike, use: str, subject: str) -> np.ndarray:
    """Return the strings of an operand on the host.

    Args:
      value: The operand.
      use: Purpose of the strings, for the error if they are not constant.
      subject: Description of the operand, for the error if it has another dtype.

    Raises:
      InvalidArgumentError: If the operand is not a string tensor.
      OperatorNotAllowedInGraphError: If the value is only known at run time.
    """
    tensor = convert_to_tensor(value, dtype_hint=string)
    if tensor.dtype is not string:
        raise errors.InvalidValueError(
            f"{subject} was expected to be a string tensor but is a {tensor.dtype.name} tensor. "
            "tf.strings.as_string makes strings of numbers."
        )
    return tensor.require_value(use)


class NumpyRules:
    """Changes that the NumPy front end makes to operators and indexing while it is enabled.

    Attributes:
      promote: Converts the operands of an operator to one dtype, before they become tensors.
      has_lattice: Whether the functions of `tf` convert their operands by this function, too.
      indexing: Whether an index may contain masks and arrays of positions.
    """

    promote: Callable[[list[Any]], list[Any]] | None = None
    has_lattice = False
    indexing = False


# A Python float of a smaller magnitude can be rounded to float32.
MAX_FLOAT32 = 1e38


def convert_operands(name: str, operands: list[Any], same: Sequence[int]) -> list[Any]:
    """Convert operands to tensors; those at the indices `same` must have the same dtype.

    Python numbers, and lists of tensors, take the dtype of the first operand among them that is a tensor.
    """
    for i, operand in enumerate(operands):
        if type(operand) is not Tensor and hasattr(operand, "_as_tensor"):
            operands[i] = operand._as_tensor()
    if NumpyRules.has_lattice and NumpyRules.promote is not None and len(same) > 1:
        present = [i for i in same if operands[i] is not None]
        promoted = NumpyRules.promote([operands[i] for i in present])
        for i, operand in zip(present, promoted, strict=True):
            operands[i] = operand
    hint = next((operands[i].dtype for i in same if type(operands[i]) is Tensor), None)
    if hint is None:
        hint = next((d for d in (_find_dtype(operands[i]) for i in same) if d is not None), None)
    for i, operand in enumerate(operands):
        if type(operand) is not Tensor and operand is not None:
            operands[i] = _convert_operand(operand, hint if i in same else None)
            if hint is None and i in same:
                hint = operands[i].dtype
    if len(same) > 1 and hint is not None:
        for i in same:
            tensor = operands[i]
            # Every op call runs this loop, so it reads the slot and not the property `array`.
            if tensor is not None and tensor._value.dtype != hint.dtype:
                raise make_dtype_mismatch_error(name, i, hint, tensor.dtype)
    return operands


def _find_dtype(operand: PyTree) -> DType | None:
    if type(operand) is Tensor:
        return operand.dtype
    if isinstance(operand, (list, tuple)):
        return next((d for d in map(_find_dtype, operand) if d is not None), None)
    return operand.dtype if hasattr(operand, "_as_tensor") else None


def _convert_operand(operand: TensorLike, hint: DType | None) -> Tensor:
    if type(operand) is float and hint is float32 and abs(operand) < MAX_FLOAT32:
        return Tensor(np.asarray(operand, np.float32))
    if hint is not None and isinstance(operand, (bool, int, float, complex)):
        return convert.convert_python_value(operand, hint)
    return convert_to_tensor(operand, dtype_hint=hint)


def cast_numpy(value: TensorLike, dtype: DType) -> TensorLike:
    """Cast a NumPy array of numbers to bool or an integer type, as TensorFlow does.

    Args:
      value: The operand; integers for an integer type, Python values, tensors and arrays of strings
        are returned unchanged.
      dtype: The only dtype, or the default one, of the operand. Imaginary parts are discarded, except
        for bool. An empty list becomes an array of bool.
    """
    if dtype.is_bool and isinstance(value, list) and not value:
        return np.zeros(0, bool)
    other_kinds = "iufc" if dtype.is_bool else "bfc"
    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype.kind not in other_kinds:
        return value
    with np.errstate(invalid="ignore"):
        return (value if dtype.is_bool else value.real).astype(dtype.dtype)


def to_static_value(value: Any, name: str = "argument") -> Any:
    """Return a hashable Python value for a static argument.

    Constant tensors become numbers and tuples.

    Args:
      value: The argument.
      name: Name of the argument, for the error.

    Raises:
      ValueNeededError: If the value is a tensor that is only known at run time.
    """
    value_type = type(value)
    if value is None or value_type in (int, str, bool, float, DType):
        return value
    if isinstance(value, (list, tuple, range)):
        return tuple(to_static_value(v, name) for v in value)
    value = read_tensor(value)
    if isinstance(value, Tensor):
        if isinstance(value.array, jax.core.Tracer):
            return to_static_value(
                read_sizes(
                    value,
                    f"`{name}` (shapes and axes are static under XLA; compute it from Python numbers or from "
                    "tf.shape(...))",
                ),
                name,
            )
        value = np.asarray(value.array)
    elif name in INTEGER_ARGUMENTS:
        value = cast_numpy(value, int64)
    if isinstance(value, (np.ndarray, jax.Array)):
        value = np.asarray(value).tolist()
        return to_static_value(value, name) if isinstance(value, list) else value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, TensorShape):
        return tuple(as_shape(value).as_list())
    return value


# Names of op arguments that are integers or lists of integers.
INTEGER_ARGUMENTS = frozenset(("axis", "axes", "dims", "multiples", "perm", "shape", "size"))


def check_integers(value: object, name: str, op_name: str = "") -> None:
    """Check an argument that must be an integer or a nested tuple of integers.

    Args:
      value: Value that `to_static_value` returned.
      name: Name of the argument.
      op_name: Name of the op, if the name of the argument is not sufficient.

    Raises:
      InvalidArgumentError: For strings and floats; the error is a `TypeError` and a `ValueError`,
        too.
    """
    for item in value if type(value) is tuple else (value,):
        if type(item) is tuple:
            check_integers(item, name, op_name)
        elif isinstance(item, (str, bytes, float)):
            prefix = f"{op_name}: " if op_name else ""
            raise errors.InvalidValueError(
                f"{prefix}`{name}` must be an integer or a list of integers, got {value!r}."
            )


def as_operand_list(op_name: str, name: str, value: Any) -> list[Any]:
    """Return the items of an argument that is a list of operands, or the rows of a tensor.

    Raises:
      TypeError: If the value is neither a list nor a tensor.
    """
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, Tensor) or hasattr(value, "_as_tensor") or isinstance(value, np.ndarray):
        return list(convert_to_tensor(value)) if value.shape else [value]
    raise TypeError(f"{op_name}: `{name}` must be a list of tensors, got {type(value).__name__}.")


def convert_operand_lists(
    op_name: str, operands: list[Any], same: Sequence[int], list_indices: set[int]
) -> list[Any]:
    """Convert operands like `convert_operands`; the items of operand lists count as separate operands."""
    flat: list[Any] = []
    flat_same: list[int] = []
    for k, operand in enumerate(operands):
        items = operand if k in list_indices else [operand]
        if k in same:
            flat_same.extend(range(len(flat), len(flat) + len(items)))
        flat.extend(items)
    flat = convert_operands(op_name, flat, flat_same)
    supply = iter(flat)
    return [
        [next(supply) for _ in operand] if k in list_indices else next(supply)
        for k, operand in enumerate(operands)
    ]


def check_kinds(op_name: str, operands: Sequence[Any], same: Sequence[int], kinds: str) -> None:
    """Check that operands have one of the allowed dtypes.

    Raises:
      DtypeMismatchError: If an operand has another dtype.
    """
    for i in same:
        operand = operands[i]
        for tensor in operand if isinstance(operand, list) else (operand,):
            if tensor is not None and _get_dtype_kind(tensor.dtype) not in kinds:
                words = [_KIND_WORDS[k] for k in kinds]
                raise errors.DtypeMismatchError(
                    f"{op_name}: input #{i} has dtype {tensor.dtype.name}, expected "
                    f"{' or '.join(words)}. Use tf.cast to convert it. [Op:{op_name}]"
                )


_KIND_WORDS = {
    "b": "bool",
    "s": "string",
    "i": "an integer type",
    "f": "a floating-point type",
    "c": "a complex type",
}


def _get_dtype_kind(dtype: DType) -> str:
    if dtype.is_floating:
        return "f"
    if dtype.is_integer:
        return "i"
    return {"bool": "b", "string": "s"}.get(dtype.name, "c")
