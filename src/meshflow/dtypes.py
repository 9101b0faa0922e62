"""`tf.dtypes`: data types and casts."""

from meshflow.core.dtypes import (
    DType,
    as_dtype,
    bfloat16,
    complex64,
    complex128,
    double,
    float16,
    float32,
    float64,
    half,
    int8,
    int16,
    int32,
    int64,
    string,
    uint8,
    uint16,
    uint32,
    uint64,
)
from meshflow.core.dtypes import bool_ as bool
from meshflow.ops.math import cast, complex, saturate_cast

__all__ = [
    *("DType", "as_dtype", "bfloat16", "bool", "cast", "complex", "complex128", "complex64", "double", "float16", "float32"),
    *("float64", "half", "int16", "int32", "int64", "int8", "saturate_cast", "string", "uint16", "uint32", "uint64", "uint8"),
]
