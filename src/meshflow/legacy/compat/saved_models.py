"""`tf.compat.v1.saved_model`: constants, and signatures as protocol messages.

Names that TensorFlow 2 also has refer to `tf.saved_model`. Functions that need a session raise an
error.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from meshflow.core.runtime.errors import NotAvailableError
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.io.tensors import make_tensor_proto
from meshflow.legacy.compat.surface import tf as _tf
from meshflow.saved_model.graph.messages import SignatureDef, TensorInfo
from meshflow.saved_model.graph.nodes import datatype, put_shape

__all__ = [
    "LEGACY_INIT_OP_KEY",
    "MAIN_OP_KEY",
    "build_signature_def",
    "build_tensor_info",
    "classification_signature_def",
    "get_tensor_from_tensor_info",
    "is_valid_signature",
    "load_v2",
    "maybe_saved_model_directory",
    "predict_signature_def",
    "regression_signature_def",
]

LEGACY_INIT_OP_KEY, MAIN_OP_KEY = "legacy_init_op", "saved_model_main_op"
_NEEDS_A_SESSION = ("Builder", "builder", "load", "main_op", "main_op_with_restore", "simple_save")
_STRING = 7  # DT_STRING in TensorFlow's `DataType` enum.

_own = _tf.saved_model
load_v2, maybe_saved_model_directory = _own.load, _own.contains_saved_model


def build_tensor_info(tensor: Any) -> TensorInfo:
    """Describe a tensor of a graph by a `TensorInfo`.

    Args:
      tensor: Tensor of an imported graph, such as `graph.get_tensor_by_name("x:0")`.

    Raises:
      RuntimeError: If the tensor does not belong to a graph.
    """
    if isinstance(tensor, (Tensor, Variable)) or not hasattr(tensor, "name"):
        raise RuntimeError(
            f"build_tensor_info: expected a named tensor of an imported graph, got {tensor!r}. Use "
            "tf.saved_model.save to save the signatures of functions."
        )
    info = TensorInfo(name=tensor.name, dtype=datatype(tensor.dtype))
    put_shape(info.tensor_shape, None if tensor.shape.rank is None else tensor.shape.as_list())
    return info


def get_tensor_from_tensor_info(
    tensor_info: TensorInfo, graph: Any = None, import_scope: str | None = None
) -> Any:
    """Return the tensor of a graph that a `TensorInfo` names.

    Args:
      tensor_info: The message.
      graph: An imported graph, such as that of a loaded model of TensorFlow 1.
      import_scope: Scope that prefixes the name, without the slash.

    Raises:
      ValueError: If no graph is passed.
      KeyError: If the graph does not contain the tensor.
    """
    if graph is None:
        raise ValueError("get_tensor_from_tensor_info: pass `graph`; there is no default graph.")
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
    return build_signature_def(_infos(inputs), _infos(outputs), _own.PREDICT_METHOD_NAME)


def regression_signature_def(examples: object, predictions: object) -> SignatureDef:
    """Build the signature of a regression of `tf.train.Example`s.

    Args:
      examples: String tensor of a graph.
      predictions: float32 tensor of the graph.

    Raises:
      ValueError: If a tensor is missing or has another dtype.
    """
    inputs, outputs = {_own.REGRESS_INPUTS: examples}, {_own.REGRESS_OUTPUTS: predictions}
    return _of_examples("Regression", inputs, outputs, _own.REGRESS_METHOD_NAME)


def classification_signature_def(examples: object, classes: object, scores: object) -> SignatureDef:
    """Build the signature of a classification of `tf.train.Example`s.

    Args:
      examples: String tensor of a graph.
      classes: String tensor of the graph, or None.
      scores: float32 tensor of the graph, or None.

    Raises:
      ValueError: If the examples or both outputs are missing, or a dtype differs.
    """
    inputs = {_own.CLASSIFY_INPUTS: examples}
    candidates = {_own.CLASSIFY_OUTPUT_CLASSES: classes, _own.CLASSIFY_OUTPUT_SCORES: scores}
    outputs = {name: tensor for name, tensor in candidates.items() if tensor is not None}
    return _of_examples("Classification", inputs, outputs, _own.CLASSIFY_METHOD_NAME)


def _of_examples(
    kind: str, inputs: Mapping[str, object], outputs: Mapping[str, object], method: str
) -> SignatureDef:
    if not outputs or any(t is None for t in (*inputs.values(), *outputs.values())):
        raise ValueError(f"{kind} signatures need examples and outputs, got {inputs}, {outputs}.")
    signature = build_signature_def(_infos(inputs), _infos(outputs), method)
    if not is_valid_signature(signature):
        raise ValueError(
            f"{kind} signatures need string inputs, string classes and float32 outputs, got {inputs}, {outputs}."
        )
    return signature


def _infos(tensors: Mapping[str, object]) -> dict[str, TensorInfo]:
    return {name: build_tensor_info(tensor) for name, tensor in tensors.items()}


def is_valid_signature(signature_def: SignatureDef) -> bool:
    """Check whether a `SignatureDef` has the inputs and outputs that its method requires."""
    method = signature_def.method_name
    input_types, output_types = (
        {k: v.dtype for k, v in m.items()} for m in (signature_def.inputs, signature_def.outputs)
    )
    if method == _own.PREDICT_METHOD_NAME:
        return bool(input_types and output_types)
    allowed = {
        _own.REGRESS_METHOD_NAME: {_own.REGRESS_OUTPUTS: 1},
        _own.CLASSIFY_METHOD_NAME: {
            _own.CLASSIFY_OUTPUT_CLASSES: _STRING,
            _own.CLASSIFY_OUTPUT_SCORES: 1,
        },
    }.get(method)
    if allowed is None:
        return False
    return (
        input_types == {_own.REGRESS_INPUTS: _STRING}
        and bool(output_types)
        and output_types.items() <= allowed.items()
    )


def _named(*names: str) -> SimpleNamespace:
    return SimpleNamespace(**{n: globals().get(n) or getattr(_own, n) for n in names})


def _constants(*prefixes: str) -> SimpleNamespace:
    return _named(*(n for n in _own.__all__ if n.isupper() and n.startswith(prefixes)))


signature_constants = _constants("CLASSIFY", "DEFAULT", "PREDICT", "REGRESS")
tag_constants = _named("GPU", "SERVING", "TPU", "TRAINING")
constants = _constants("ASSETS", "DEBUG", "SAVED", "VARIABLES")
constants.LEGACY_INIT_OP_KEY, constants.MAIN_OP_KEY = LEGACY_INIT_OP_KEY, MAIN_OP_KEY
signature_def_utils = _named(
    *("build_signature_def", "classification_signature_def", "is_valid_signature"),
    *("predict_signature_def", "regression_signature_def"),
)
utils = _named("build_tensor_info", "get_tensor_from_tensor_info")


class _Loader:
    maybe_saved_model_directory = staticmethod(maybe_saved_model_directory)

    def __getattr__(self, name: str) -> Any:
        return __getattr__(name)


loader = _Loader()


def __getattr__(name: str) -> Any:
    if name in _NEEDS_A_SESSION:
        raise NotAvailableError(
            f"tf.compat.v1.saved_model.{name} needs a session, and TensorFlow 1's graph mode does not exist here. Save "
            "with tf.saved_model.save. Load with tf.saved_model.load: its result has the signatures of models of "
            "TensorFlow 1, their graph, and prune(feeds, fetches)."
        )
    return getattr(_own, name)
