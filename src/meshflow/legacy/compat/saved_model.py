"""`tf.compat.v1.saved_model`: constants, and signatures as protocol messages.

Names that TensorFlow 2 also has refer to `tf.saved_model`. Functions of a session are in `session_models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from meshflow.core.runtime.unavailable_names import raise_if_unavailable
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.io.tensors import make_tensor_proto
from meshflow.legacy.compat import session_models as _session_models
from meshflow.legacy.compat.public_package import tf as _tf
from meshflow.legacy.compat.session_models import Builder, load, simple_save
from meshflow.legacy.graph.graph import get_default_graph
from meshflow.legacy.graph.operations import SymbolicTensor
from meshflow.saved_model.graph.format.messages import SignatureDef, TensorInfo
from meshflow.saved_model.graph.format.nodes import to_dtype_enum, write_shape

__all__ = [
    "LEGACY_INIT_OP_KEY",
    "MAIN_OP_KEY",
    "Builder",
    "build_signature_def",
    "build_tensor_info",
    "classification_signature_def",
    "experimental",
    "get_tensor_from_tensor_info",
    "is_valid_signature",
    "load",
    "load_v2",
    "main_op_with_restore",
    "maybe_saved_model_directory",
    "predict_signature_def",
    "regression_signature_def",
    "simple_save",
]

LEGACY_INIT_OP_KEY, MAIN_OP_KEY = "legacy_init_op", "saved_model_main_op"
_DT_STRING = 7  # DT_STRING in TensorFlow's `DataType` enum.

_saved_model = _tf.saved_model
load_v2, maybe_saved_model_directory = _saved_model.load, _saved_model.contains_saved_model


def build_tensor_info(tensor: Any) -> TensorInfo:
    """Describe a tensor of a graph by a `TensorInfo`.

    Args:
      tensor: Tensor of an imported graph, such as `graph.get_tensor_by_name("x:0")`.

    Raises:
      RuntimeError: If the tensor does not belong to a graph.
    """
    if isinstance(tensor, Variable):
        tensor = tensor._as_graph_element() if hasattr(tensor, "_as_graph_element") else tensor
    is_symbolic = isinstance(tensor, SymbolicTensor)
    if (isinstance(tensor, (Tensor, Variable)) and not is_symbolic) or not hasattr(tensor, "name"):
        raise RuntimeError(
            f"build_tensor_info: expected a named tensor of an imported graph, got {tensor!r}. Use "
            "tf.saved_model.save to save the signatures of functions."
        )
    info = TensorInfo(name=tensor.name, dtype=to_dtype_enum(tensor.dtype))
    write_shape(info.tensor_shape, None if tensor.shape.rank is None else tensor.shape.as_list())
    return info


def get_tensor_from_tensor_info(
    tensor_info: TensorInfo, graph: Any = None, import_scope: str | None = None
) -> Any:
    """Return the tensor of a graph that a `TensorInfo` names.

    Args:
      tensor_info: The message.
      graph: A graph, such as that of a loaded model of TensorFlow 1. Default: the default graph.
      import_scope: Scope that prefixes the name, without the slash.

    Raises:
      KeyError: If the graph does not contain the tensor.
    """
    graph = get_default_graph() if graph is None else graph
    prefix = f"{import_scope}/" if import_scope else ""
    return graph.as_graph_element(prefix + tensor_info.name)


def build_signature_def(
    inputs: Mapping[str, TensorInfo] | None = None,
    outputs: Mapping[str, TensorInfo] | None = None,
    method_name: str | None = None,
    defaults: Mapping[str, TensorLike] | None = None,
) -> SignatureDef:
    """Build a `SignatureDef`.

    Args:
      inputs: `TensorInfo`s of the inputs by name.
      outputs: `TensorInfo`s of the outputs by name.
      method_name: Name of the serving method.
      defaults: Values of optional inputs by name: tensors, or values that can be converted to
        tensors.
    """
    signature = SignatureDef()
    for target, infos in ((signature.inputs, inputs), (signature.outputs, outputs)):
        for name, info in (infos or {}).items():
            target[name].CopyFrom(info)
    for name, value in (defaults or {}).items():
        signature.defaults[name].MergeFromString(make_tensor_proto(value).SerializeToString())
    signature.method_name = method_name or ""
    return signature


def predict_signature_def(
    inputs: Mapping[str, object], outputs: Mapping[str, object]
) -> SignatureDef:
    """Build the signature of a prediction.

    Args:
      inputs: Tensors of a graph by name.
      outputs: Tensors of the graph by name.

    Raises:
      ValueError: If inputs or outputs are empty.
    """
    for role, tensors in (("inputs", inputs), ("outputs", outputs)):
        if not tensors:
            raise ValueError(f"Prediction {role} cannot be None or empty.")
    return build_signature_def(
        _build_tensor_infos(inputs), _build_tensor_infos(outputs), _saved_model.PREDICT_METHOD_NAME
    )


def regression_signature_def(examples: object, predictions: object) -> SignatureDef:
    """Build the signature of a regression of `tf.train.Example`s.

    Args:
      examples: String tensor of a graph.
      predictions: float32 tensor of the graph.

    Raises:
      ValueError: If a tensor is missing or has another dtype.
    """
    inputs, outputs = (
        {_saved_model.REGRESS_INPUTS: examples},
        {_saved_model.REGRESS_OUTPUTS: predictions},
    )
    return _build_example_signature("Regression", inputs, outputs, _saved_model.REGRESS_METHOD_NAME)


def classification_signature_def(examples: object, classes: object, scores: object) -> SignatureDef:
    """Build the signature of a classification of `tf.train.Example`s.

    Args:
      examples: String tensor of a graph.
      classes: String tensor of the graph, or None.
      scores: float32 tensor of the graph, or None.

    Raises:
      ValueError: If the examples or both outputs are missing, or a dtype differs.
    """
    inputs = {_saved_model.CLASSIFY_INPUTS: examples}
    candidates = {
        _saved_model.CLASSIFY_OUTPUT_CLASSES: classes,
        _saved_model.CLASSIFY_OUTPUT_SCORES: scores,
    }
    outputs = {name: tensor for name, tensor in candidates.items() if tensor is not None}
    return _build_example_signature(
        "Classification", inputs, outputs, _saved_model.CLASSIFY_METHOD_NAME
    )


def _build_example_signature(
    kind: str, inputs: Mapping[str, object], outputs: Mapping[str, object], method: str
) -> SignatureDef:
    if not outputs or any(t is None for t in (*inputs.values(), *outputs.values())):
        raise ValueError(f"{kind} signatures need examples and outputs, got {inputs}, {outputs}.")
    signature = build_signature_def(
        _build_tensor_infos(inputs), _build_tensor_infos(outputs), method
    )
    if not is_valid_signature(signature):
        raise ValueError(
            f"{kind} signatures need string inputs, string classes and float32 outputs, got {inputs}, {outputs}."
        )
    return signature


def _build_tensor_infos(tensors: Mapping[str, object]) -> dict[str, TensorInfo]:
    return {name: build_tensor_info(tensor) for name, tensor in tensors.items()}


def is_valid_signature(signature_def: SignatureDef) -> bool:
    """Check whether a `SignatureDef` has the inputs and outputs that its method requires."""
    method = signature_def.method_name
    input_types, output_types = (
        {k: v.dtype for k, v in m.items()} for m in (signature_def.inputs, signature_def.outputs)
    )
    if method == _saved_model.PREDICT_METHOD_NAME:
        return bool(input_types and output_types)
    allowed = {
        _saved_model.REGRESS_METHOD_NAME: {_saved_model.REGRESS_OUTPUTS: 1},
        _saved_model.CLASSIFY_METHOD_NAME: {
            _saved_model.CLASSIFY_OUTPUT_CLASSES: _DT_STRING,
            _saved_model.CLASSIFY_OUTPUT_SCORES: 1,
        },
    }.get(method)
    if allowed is None:
        return False
    return (
        input_types == {_saved_model.REGRESS_INPUTS: _DT_STRING}
        and bool(output_types)
        and output_types.items() <= allowed.items()
    )


class _SignatureNames(SimpleNamespace):
    def __getattr__(self, name: str) -> Any:
        raise_if_unavailable(name, "tf.compat.v1.saved_model.signature_def_utils")
        raise AttributeError(name)


def _collect_names(*names: str) -> SimpleNamespace:
    return _SignatureNames(**{n: globals().get(n) or getattr(_saved_model, n) for n in names})


def _collect_constants(*prefixes: str) -> SimpleNamespace:
    return _collect_names(
        *(n for n in _saved_model.__all__ if n.isupper() and n.startswith(prefixes))
    )


signature_constants = _collect_constants("CLASSIFY", "DEFAULT", "PREDICT", "REGRESS")
tag_constants = _collect_names("GPU", "SERVING", "TPU", "TRAINING")
constants = _collect_constants("ASSETS", "DEBUG", "SAVED", "VARIABLES")
constants.LEGACY_INIT_OP_KEY, constants.MAIN_OP_KEY = LEGACY_INIT_OP_KEY, MAIN_OP_KEY
signature_def_utils = _collect_names(
    *("build_signature_def", "classification_signature_def", "is_valid_signature"),
    *("predict_signature_def", "regression_signature_def"),
)
experimental = SimpleNamespace(
    save=_saved_model.save,
    **{n: getattr(_saved_model.experimental, n) for n in _saved_model.experimental.__all__},
)
utils = _collect_names("build_tensor_info", "get_tensor_from_tensor_info")


loader = SimpleNamespace(load=load, maybe_saved_model_directory=maybe_saved_model_directory)
builder = SimpleNamespace(SavedModelBuilder=Builder)
main_op_with_restore = _session_models.main_op_with_restore
main_op = SimpleNamespace(
    main_op=_session_models.main_op, main_op_with_restore=main_op_with_restore
)


def __getattr__(name: str) -> Any:
    return getattr(_saved_model, name)
