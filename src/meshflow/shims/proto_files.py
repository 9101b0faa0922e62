"""Files of TensorFlow's protocol buffers, which those of libraries depend on."""

from __future__ import annotations

import importlib

from google.protobuf import descriptor_pool
from google.protobuf.internal import enum_type_wrapper

from meshflow.environment.protobuf_messages import declare_file

__all__ = ["DataType", "declare_module"]

# In the order of their numbers.
_DTYPE_NAMES = """
    INVALID FLOAT DOUBLE INT32 UINT8 INT16 INT8 STRING COMPLEX64 INT64 BOOL QINT8 QUINT8 QINT32 BFLOAT16 QINT16
    QUINT16 UINT16 COMPLEX128 HALF RESOURCE VARIANT UINT32 UINT64 FLOAT8_E5M2 FLOAT8_E4M3FN
""".split()  # noqa: SIM905 - the list would have thirty lines
_NUMBERS = {f"DT_{name}": number for number, name in enumerate(_DTYPE_NAMES)}
_NUMBERS |= {f"{name}_REF": number + 100 for name, number in _NUMBERS.items() if number}


def declare_module(name: str) -> None:
    """Add the file of a module to the default pool, for example of `tensorflow.core.framework.tensor_pb2`."""
    declare_file(f"{name.removesuffix('_pb2').replace('.', '/')}.proto", {})


for _module in ("saved_model.graph.format.messages", "summary.tracing"):  # They declare messages.
    importlib.import_module(f"{__name__.partition('.')[0]}.{_module}")
declare_file("tensorflow/core/framework/types.proto", {}, {"DataType": _NUMBERS})
DataType = enum_type_wrapper.EnumTypeWrapper(
    descriptor_pool.Default().FindEnumTypeByName("tensorflow.DataType")
)
# `types_pb2.DT_FLOAT`.
globals().update(_NUMBERS)
