"""Protocol buffers of TensorFlow's SavedModels: graphs, functions, objects and signatures.

Dtypes have the values of `DType.as_datatype_enum`. Other enumerations are declared as integers.
"""

from __future__ import annotations

from typing import Any, Protocol

from meshflow.environment.protobuf_messages import DecodeError, MessageTable, declare_messages
from meshflow.io.messages import TENSOR_MESSAGES

__all__ = [
    "SIGNATURE_MESSAGES",
    "AttrValue",
    "DecodeError",
    "FunctionDef",
    "GraphDef",
    "Message",
    "MetaGraphDef",
    "NodeDef",
    "SavedConcreteFunction",
    "SavedMetadata",
    "SavedModel",
    "SavedObject",
    "SignatureDef",
    "StructuredValue",
    "TensorInfo",
    "TensorProto",
    "TensorShapeProto",
]


class Message(Protocol):
    """Message, or repeated field of messages. Type checkers do not know the fields of the classes."""

    def __getattr__(self, name: str) -> Any: ...

    def __setattr__(self, name: str, value: Any) -> None: ...


_GRAPH_MESSAGES: MessageTable = {
    **TENSOR_MESSAGES,
    "VersionDef": {
        "producer": (1, "int32"),
        "min_consumer": (2, "int32"),
        "bad_consumers": (3, "*int32"),
    },
    "NameAttrList": {"name": (1, "string"), "attr": (2, "{}AttrValue")},
    "AttrValue": {
        "list": (1, "|AttrValue.ListValue"),
        "s": (2, "|bytes"),
        "i": (3, "|int64"),
        "f": (4, "|float"),
        "b": (5, "|bool"),
        "type": (6, "|DataType"),
        "shape": (7, "|TensorShapeProto"),
        "tensor": (8, "|TensorProto"),
        "placeholder": (9, "|string"),
        "func": (10, "|NameAttrList"),
    },
    "AttrValue.ListValue": {
        "s": (2, "*bytes"),
        "i": (3, "*int64"),
        "f": (4, "*float"),
        "b": (5, "*bool"),
        "type": (6, "*DataType"),
        "shape": (7, "*TensorShapeProto"),
        "tensor": (8, "*TensorProto"),
        "func": (9, "*NameAttrList"),
    },
    "NodeDef": {
        "name": (1, "string"),
        "op": (2, "string"),
        "input": (3, "*string"),
        "device": (4, "string"),
        "attr": (5, "{}AttrValue"),
    },
    "ResourceHandleProto": {},
    "ResourceHandleProto.DtypeAndShape": {
        "dtype": (1, "DataType"),
        "shape": (2, "TensorShapeProto"),
    },
    "OpDef": {
        "name": (1, "string"),
        "input_arg": (2, "*OpDef.ArgDef"),
        "output_arg": (3, "*OpDef.ArgDef"),
        "control_output": (20, "*string"),
        "is_stateful": (17, "bool"),
    },
    "OpDef.ArgDef": {
        "name": (1, "string"),
        "description": (2, "string"),
        "type": (3, "DataType"),
        "type_attr": (4, "string"),
        "number_attr": (5, "string"),
        "type_list_attr": (6, "string"),
        "handle_data": (7, "*ResourceHandleProto.DtypeAndShape"),
    },
    "FunctionDef": {
        "signature": (1, "OpDef"),
        "node_def": (3, "*NodeDef"),
        "ret": (4, "{}string"),
        "attr": (5, "{}AttrValue"),
        "control_ret": (6, "{}string"),
    },
    "RegisteredGradient": {"gradient_func": (1, "string"), "registered_op_type": (2, "string")},
    "FunctionDefLibrary": {
        "function": (1, "*FunctionDef"),
        "registered_gradients": (3, "*RegisteredGradient"),
    },
    "GraphDef": {
        "node": (1, "*NodeDef"),
        "library": (2, "FunctionDefLibrary"),
        "versions": (4, "VersionDef"),
    },
}

_OBJECT_MESSAGES: MessageTable = {
    "ObjectReference": {"node_id": (1, "int32"), "local_name": (2, "string")},
    "SlotVariableReference": {
        "original_variable_node_id": (1, "int32"),
        "slot_name": (2, "string"),
        "slot_variable_node_id": (3, "int32"),
    },
    "NoneValue": {},
    "TensorSpecProto": {
        "name": (1, "string"),
        "shape": (2, "TensorShapeProto"),
        "dtype": (3, "DataType"),
    },
    "BoundedTensorSpecProto": {
        "name": (1, "string"),
        "shape": (2, "TensorShapeProto"),
        "dtype": (3, "DataType"),
        "minimum": (4, "TensorProto"),
        "maximum": (5, "TensorProto"),
    },
    "TypeSpecProto": {
        "type_spec_class": (1, "int32"),
        "type_state": (2, "StructuredValue"),
        "type_spec_class_name": (3, "string"),
        "num_flat_components": (4, "int32"),
    },
    "PairValue": {"key": (1, "string"), "value": (2, "StructuredValue")},
    "ListValue": {"values": (1, "*StructuredValue")},
    "TupleValue": {"values": (1, "*StructuredValue")},
    "DictValue": {"fields": (1, "{}StructuredValue")},
    "NamedTupleValue": {"name": (1, "string"), "values": (2, "*PairValue")},
    "StructuredValue": {
        "none_value": (1, "|NoneValue"),
        "float64_value": (11, "|double"),
        "int64_value": (12, "|sint64"),
        "string_value": (13, "|string"),
        "bool_value": (14, "|bool"),
        "tensor_shape_value": (31, "|TensorShapeProto"),
        "tensor_dtype_value": (32, "|DataType"),
        "tensor_spec_value": (33, "|TensorSpecProto"),
        "type_spec_value": (34, "|TypeSpecProto"),
        "bounded_tensor_spec_value": (35, "|BoundedTensorSpecProto"),
        "list_value": (51, "|ListValue"),
        "tuple_value": (52, "|TupleValue"),
        "dict_value": (53, "|DictValue"),
        "named_tuple_value": (54, "|NamedTupleValue"),
    },
    "FunctionSpec": {
        "fullargspec": (1, "StructuredValue"),
        "is_method": (2, "bool"),
        "input_signature": (5, "StructuredValue"),
    },
    "SavedUserObject": {
        "identifier": (1, "string"),
        "version": (2, "VersionDef"),
        "metadata": (3, "string"),
    },
    "SavedAsset": {"asset_file_def_index": (1, "int32")},
    "SavedFunction": {"concrete_functions": (1, "*string"), "function_spec": (2, "FunctionSpec")},
    "CapturedTensor": {"name": (1, "string"), "concrete_function": (2, "string")},
    "SavedConcreteFunction": {
        "bound_inputs": (2, "*int32"),
        "canonicalized_input_signature": (3, "StructuredValue"),
        "output_signature": (4, "StructuredValue"),
    },
    "SavedBareConcreteFunction": {
        "concrete_function_name": (1, "string"),
        "argument_keywords": (2, "*string"),
        "allowed_positional_arguments": (3, "int64"),
        "function_spec": (4, "FunctionSpec"),
    },
    "SavedConstant": {"operation": (1, "string")},
    "SavedVariable": {
        "dtype": (1, "DataType"),
        "shape": (2, "TensorShapeProto"),
        "trainable": (3, "bool"),
        "synchronization": (4, "int32"),
        "aggregation": (5, "int32"),
        "name": (6, "string"),
        "device": (7, "string"),
    },
    "SavedResource": {"device": (1, "string")},
    "SaveableObject": {"save_function": (2, "int32"), "restore_function": (3, "int32")},
    "SavedObject": {
        "children": (1, "*ObjectReference"),
        "slot_variables": (3, "*SlotVariableReference"),
        "user_object": (4, "|SavedUserObject"),
        "asset": (5, "|SavedAsset"),
        "function": (6, "|SavedFunction"),
        "variable": (7, "|SavedVariable"),
        "bare_concrete_function": (8, "|SavedBareConcreteFunction"),
        "constant": (9, "|SavedConstant"),
        "resource": (10, "|SavedResource"),
        "captured_tensor": (12, "|CapturedTensor"),
        "saveable_objects": (11, "{}SaveableObject"),
        "dependencies": (15, "*ObjectReference"),
        "registered_name": (13, "string"),
    },
    "SavedObjectGraph": {
        "nodes": (1, "*SavedObject"),
        "concrete_functions": (2, "{}SavedConcreteFunction"),
    },
}

# Inputs and outputs of signatures. The table refers to messages of `TENSORS`.
SIGNATURE_MESSAGES: MessageTable = {
    "TensorInfo": {
        "name": (1, "|string"),
        "dtype": (2, "DataType"),
        "tensor_shape": (3, "TensorShapeProto"),
        "coo_sparse": (4, "|TensorInfo.CooSparse"),
        "composite_tensor": (5, "|TensorInfo.CompositeTensor"),
    },
    "TensorInfo.CooSparse": {
        "values_tensor_name": (1, "string"),
        "indices_tensor_name": (2, "string"),
        "dense_shape_tensor_name": (3, "string"),
    },
    # The spec is a `TypeSpecProto`.
    "TensorInfo.CompositeTensor": {"type_spec": (1, "bytes"), "components": (2, "*TensorInfo")},
    "SignatureDef": {
        "inputs": (1, "{}TensorInfo"),
        "outputs": (2, "{}TensorInfo"),
        "method_name": (3, "string"),
        "defaults": (4, "{}TensorProto"),
    },
}

_MODEL_MESSAGES: MessageTable = {
    **SIGNATURE_MESSAGES,
    "AssetFileDef": {"tensor_info": (1, "TensorInfo"), "filename": (2, "string")},
    "SaverDef": {
        "filename_tensor_name": (1, "string"),
        "save_tensor_name": (2, "string"),
        "restore_op_name": (3, "string"),
        "max_to_keep": (4, "int32"),
        "sharded": (5, "bool"),
        "version": (7, "int32"),
    },
    "MetaInfoDef": {
        "meta_graph_version": (1, "string"),
        "tags": (4, "*string"),
        "tensorflow_version": (5, "string"),
        "tensorflow_git_version": (6, "string"),
        "stripped_default_attrs": (7, "bool"),
        "function_aliases": (8, "{}string"),
    },
    "CollectionDef": {
        "node_list": (1, "|NodeList"),
        "bytes_list": (2, "|CollectionBytes"),
        "int64_list": (3, "|CollectionIntegers"),
        "float_list": (4, "|CollectionFloats"),
    },
    "NodeList": {"value": (1, "*string")},
    "CollectionBytes": {"value": (1, "*bytes")},
    "CollectionIntegers": {"value": (1, "*int64")},
    "CollectionFloats": {"value": (1, "*float")},
    "VariableDef": {
        "variable_name": (1, "string"),
        "initializer_name": (2, "string"),
        "snapshot_name": (3, "string"),
        "is_resource": (5, "bool"),
        "initial_value_name": (6, "string"),
        "trainable": (7, "bool"),
    },
    "MetaGraphDef": {
        "meta_info_def": (1, "MetaInfoDef"),
        "graph_def": (2, "GraphDef"),
        "saver_def": (3, "SaverDef"),
        "collection_def": (4, "{}CollectionDef"),
        "signature_def": (5, "{}SignatureDef"),
        "asset_file_def": (6, "*AssetFileDef"),
        "object_graph_def": (7, "SavedObjectGraph"),
    },
    "SavedModel": {"saved_model_schema_version": (1, "int64"), "meta_graphs": (2, "*MetaGraphDef")},
    # TensorFlow's Keras writes these messages to a second file of a SavedModel.
    "KerasObject": {
        "version": (1, "VersionDef"),
        "node_id": (2, "int32"),
        "node_path": (3, "string"),
        "identifier": (4, "string"),
        "metadata": (5, "string"),
    },
    "SavedMetadata": {"nodes": (1, "*KerasObject")},
}

_classes = declare_messages(
    "meshflow/saved_model.proto", {**_GRAPH_MESSAGES, **_OBJECT_MESSAGES, **_MODEL_MESSAGES}
)
AttrValue = _classes["AttrValue"]
FunctionDef = _classes["FunctionDef"]
GraphDef = _classes["GraphDef"]
MetaGraphDef = _classes["MetaGraphDef"]
NodeDef = _classes["NodeDef"]
SavedConcreteFunction = _classes["SavedConcreteFunction"]
SavedMetadata = _classes["SavedMetadata"]
SavedModel = _classes["SavedModel"]
SavedObject = _classes["SavedObject"]
SignatureDef = _classes["SignatureDef"]
StructuredValue = _classes["StructuredValue"]
TensorInfo = _classes["TensorInfo"]
TensorProto = _classes["TensorProto"]
TensorShapeProto = _classes["TensorShapeProto"]
VariableDef = _classes["VariableDef"]
