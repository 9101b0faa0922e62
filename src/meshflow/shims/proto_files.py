"""Files of TensorFlow's protocol buffers, which those of libraries depend on."""

from __future__ import annotations

import importlib

from google.protobuf import descriptor_pool
from google.protobuf.internal import enum_type_wrapper

from meshflow.environment.protobuf_messages import DTYPE_NUMBERS, declare_dtypes, declare_file

__all__ = ["DataType", "declare_module"]


def declare_module(name: str) -> None:
    """Add the file of a module to the default pool, for example of `tensorflow.core.framework.tensor_pb2`."""
    declare_file(f"{name.removesuffix('_pb2').replace('.', '/')}.proto", {})


for _module in ("saved_model.graph.format.messages", "summary.tracing"):  # They declare messages.
    importlib.import_module(f"{__name__.partition('.')[0]}.{_module}")
declare_dtypes()
DataType = enum_type_wrapper.EnumTypeWrapper(
    descriptor_pool.Default().FindEnumTypeByName("tensorflow.DataType")
)
# `types_pb2.DT_FLOAT`.
globals().update(DTYPE_NUMBERS)
