"""`tf.dtypes.experimental`: types of 8-bit floats and 4-bit integers."""

from meshflow.core.values.dtypes import float8_e4m3fn, float8_e5m2, int4, uint4

__all__ = ["float8_e4m3fn", "float8_e5m2", "int4", "uint4"]
