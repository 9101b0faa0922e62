"""Data types as objects, such as `tf.float32`.

A `DType` wraps the NumPy dtype of the underlying arrays, so a conversion in either direction is a
dictionary lookup. `tf.string` arrays are NumPy object arrays on the host, because XLA has no
strings.
"""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt


class DType:
    """The type of the elements of a tensor.

    Example:
      >>> tf.float32.name, tf.float32.size, tf.int8.max
      ('float32', 4, 127)
      >>> tf.float16 == "float16", tf.as_dtype(float)
      (True, tf.float32)
    """

    __slots__ = ("_enum", "_name", "_numpy")

    def __init__(self, name: str, numpy_dtype: npt.DTypeLike, enum: int) -> None:
        self._name = name
        self._numpy = np.dtype(numpy_dtype)
        self._enum = enum

    @property
    def name(self) -> str:
        """Return TensorFlow's name of the type, such as `'float32'`."""
        return self._name

    @property
    def as_numpy_dtype(self) -> type:
        """Return the NumPy scalar type, such as `numpy.float32`."""
        return self._numpy.type

    @property
    def as_datatype_enum(self) -> int:
        """Return TensorFlow's enum value of the type, as used in files."""
        return self._enum

    @property
    def base_dtype(self) -> DType:
        """Return the type itself; reference types do not exist here."""
        return self

    @property
    def real_dtype(self) -> DType:
        """Return the type of the real part of a complex type, or the type itself."""
        return {"complex64": float32, "complex128": float64}.get(self._name, self)

    @property
    def size(self) -> int:
        """Return the size of one element in bytes; 1 for strings, like in TensorFlow."""
        return 1 if self._name == "string" else self._numpy.itemsize

    @property
    def is_bool(self) -> bool:
        """Check for `tf.bool`."""
        return self._name == "bool"

    @property
    def is_integer(self) -> bool:
        """Check for signed and unsigned integers."""
        return self._numpy.kind in "iu" or self._name in ("int4", "uint4")

    @property
    def is_floating(self) -> bool:
        """Check for real floating-point types, including float8."""
        return self._name in _FLOATING

    @property
    def is_complex(self) -> bool:
        """Check for complex types."""
        return self._numpy.kind == "c"

    @property
    def is_unsigned(self) -> bool:
        """Check for unsigned integers."""
        return self._numpy.kind == "u" or self._name == "uint4"

    @property
    def is_numeric(self) -> bool:
        """Check for integers, floats and complex numbers."""
        return self.is_integer or self.is_floating or self.is_complex

    @property
    def is_numpy_compatible(self) -> bool:
        """Check whether NumPy itself has the type."""
        return self._numpy.kind in "biufcO"

    @property
    def is_quantized(self) -> bool:
        """Check for quantized integers, which no tensor has."""
        return self._name.startswith(("qint", "quint"))

    @property
    def min(self) -> Any:
        """Return the smallest finite value.

        Raises:
          TypeError: If the type has no order, such as strings.
        """
        return self._get_limit("min")

    @property
    def max(self) -> Any:
        """Return the largest finite value.

        Raises:
          TypeError: If the type has no order, such as strings.
        """
        return self._get_limit("max")

    @property
    def limits(self) -> tuple[Any, Any]:
        """Return the range of image elements of this type.

        It is (0, 1) for floats, and 0 to the largest value for integers.

        Raises:
          ValueError: For other types.
        """
        if self._name in ("float32", "float64", "bool"):
            return (0, True) if self.is_bool else (0, 1)
        if not self.is_integer:
            raise ValueError(f"{self} does not have defined limits.")
        return 0, self.max

    def _get_limit(self, which: str) -> Any:
        if self.is_bool:
            return which == "max"
        if self.is_floating:
            return self._numpy.type(getattr(ml_dtypes.finfo(self._numpy), which))
        if self.is_integer:
            return getattr(_find_integer_limits(self._numpy), which)
        raise TypeError(f"Cannot find the {which}imum value of {self!r}.")

    def is_compatible_with(self, other: object) -> bool:
        """Check whether values of type `other` can be used as this type, which requires equal types."""
        return self == other

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if other is None:
            return False
        try:
            return as_dtype(other) is self
        except TypeError:
            return False

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return f"tf.{self._name}"

    def __str__(self) -> str:
        return f"<dtype: '{self._name}'>"

    def __int__(self) -> int:
        return self._enum

    def __reduce__(self) -> Any:
        return as_dtype, (self._name,)

    # NumPy and JAX accept any object with a `dtype` attribute as a dtype.
    @property
    def dtype(self) -> np.dtype:
        """Return the NumPy dtype, which allows a `DType` as `dtype=` in NumPy and JAX."""
        return self._numpy


float16 = half = DType("float16", np.float16, 19)
float32 = DType("float32", np.float32, 1)
float64 = double = DType("float64", np.float64, 2)
bfloat16 = DType("bfloat16", ml_dtypes.bfloat16, 14)
float8_e5m2 = DType("float8_e5m2", ml_dtypes.float8_e5m2, 24)
float8_e4m3fn = DType("float8_e4m3fn", ml_dtypes.float8_e4m3fn, 25)
int4 = DType("int4", ml_dtypes.int4, 29)
uint4 = DType("uint4", ml_dtypes.uint4, 30)
int8 = DType("int8", np.int8, 6)
int16 = DType("int16", np.int16, 5)
int32 = DType("int32", np.int32, 3)
int64 = DType("int64", np.int64, 9)
uint8 = DType("uint8", np.uint8, 4)
uint16 = DType("uint16", np.uint16, 17)
uint32 = DType("uint32", np.uint32, 22)
uint64 = DType("uint64", np.uint64, 23)
complex64 = DType("complex64", np.complex64, 8)
complex128 = DType("complex128", np.complex128, 18)
bool_ = DType("bool", np.bool_, 10)
string = DType("string", np.object_, 7)
# Tensors do not have these types; programs compare with them.
qint8 = DType("qint8", np.int8, 11)
qint16 = DType("qint16", np.int16, 15)
qint32 = DType("qint32", np.int32, 13)
quint8 = DType("quint8", np.uint8, 12)
quint16 = DType("quint16", np.uint16, 16)
resource = DType("resource", np.object_, 20)
variant = DType("variant", np.object_, 21)
QUANTIZED_DTYPES = frozenset((qint8, qint16, qint32, quint8, quint16))

ALL_DTYPES = (
    *(float16, float32, float64, bfloat16, float8_e5m2, float8_e4m3fn),
    *(int4, uint4, int8, int16, int32, int64, uint8, uint16, uint32, uint64),
    *(complex64, complex128, bool_, string),
)
_FLOATING = frozenset(d.name for d in ALL_DTYPES[:6])
_BY_NUMPY: dict[np.dtype, DType] = {d.dtype: d for d in ALL_DTYPES}
_BY_NAME: dict[str, DType] = {d.name: d for d in ALL_DTYPES} | {
    "half": float16,
    "float": float32,
    "double": float64,
}
_BY_NAME |= {d.name: d for d in (*QUANTIZED_DTYPES, resource, variant)}
_BY_ENUM = {d.as_datatype_enum: d for d in ALL_DTYPES}
# Python's types map to TensorFlow's defaults, not to NumPy's 64-bit types.
_BY_TYPE: dict[Any, DType] = {
    float: float32,
    int: int64,
    bool: bool_,
    complex: complex128,
    str: string,
}
_BY_TYPE |= {bytes: string, object: string}


_find_integer_limits = functools.cache(ml_dtypes.iinfo)


def from_numpy_dtype(dtype: np.dtype) -> DType:
    """Return the `DType` of arrays with a NumPy dtype.

    Raises:
      TypeError: If no tensor dtype corresponds to the NumPy dtype.
    """
    tensor_dtype = _BY_NUMPY.get(dtype)
    if tensor_dtype is not None:
        return tensor_dtype
    if dtype.kind in "SU":
        return string
    raise TypeError(f"NumPy dtype {dtype!r} has no tensor dtype.")


# A value that `as_dtype` converts: a `DType`, its name or number, a NumPy dtype or scalar type, or a Python type.
DTypeLike: TypeAlias = DType | str | int | np.dtype[Any] | type[Any]


def as_dtype(type_value: object) -> DType:
    """Convert a name, NumPy dtype, Python type or enum value to a `DType`.

    Args:
      type_value: A `DType`, `'float32'`, `numpy.float32`, `numpy.dtype('f4')`, `float`, an enum
        value, ...

    Returns:
      The `DType`.

    Raises:
      TypeError: If the value does not denote a data type.

    Example:
      >>> tf.as_dtype("bfloat16")
      tf.bfloat16
    """
    if type(type_value) is DType:
        return type_value
    if isinstance(type_value, str) and type_value in _BY_NAME:
        return _BY_NAME[type_value]
    if isinstance(type_value, type) and type_value in _BY_TYPE:
        return _BY_TYPE[type_value]
    if isinstance(type_value, int) and type_value in _BY_ENUM:
        return _BY_ENUM[type_value]
    try:
        if type_value is None:  # NumPy would interpret None as float64.
            raise TypeError
        return from_numpy_dtype(np.dtype(type_value))  # type: ignore[call-overload]
    except (
        TypeError,
        ValueError,
        SyntaxError,
    ):  # NumPy evaluates names with commas as Python literals.
        raise TypeError(
            f"Cannot convert {type_value!r} to a dtype. Expected a tf.DType, a name such as "
            f"'float32', or a NumPy dtype; the names are {sorted(_BY_NAME)}."
        ) from None
