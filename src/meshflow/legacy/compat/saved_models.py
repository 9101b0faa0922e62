"""`tf.compat.v1.saved_model`: version 2's names, signatures as messages, and what a session is needed for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from meshflow.core.runtime.errors import NotAvailableError
from meshflow.core.values.tensor import Tensor
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
_STRING = 7

_own = _tf.saved_model
load_v2, maybe_saved_model_directory = _own.load, _own.contains_saved_model


def build_tensor_info(tensor: Any) -> Any:
    """A tensor of a graph as a `TensorInfo`.

    Args:
      tensor: of an imported graph, such as `graph.get_tensor_by_name("x:0")`.

    Raises:
      RuntimeError: for a tensor that is no graph's.
    """
    if isinstance(tensor, (Tensor, Variable)) or not hasattr(tensor, "name"):
        raise RuntimeError(
            f"build_tensor_info takes a tensor of an imported graph, which has a name in files, got {tensor!r}: "
            "signatures of functions are saved by tf.saved_model.save."
        )
    info = TensorInfo(name=tensor.name, dtype=datatype(tensor.dtype))
    put_shape(info.tensor_shape, None if tensor.shape.rank is None else tensor.shape.as_list())
    return info


def get_tensor_from_tensor_info(
    tensor_info: Any, graph: Any = None, import_scope: str | None = None
) -> Any:
    """The tensor of a graph that a `TensorInfo` names.

    Args:
      tensor_info: the message.
      graph: an imported graph, such as that of a loaded model of version 1.
      import_scope: what is put before the name, with a slash.

    Raises:
      ValueError: without a graph.
      KeyError: when it has no such tensor.
    """
    if graph is None:
        raise ValueError("get_tensor_from_tensor_info: give the graph; there is no default one.")
    prefix = f"{import_scope}/" if import_scope else ""
    return graph.as_graph_element(prefix + tensor_info.name)


def build_signature_def(
    inputs: Any = None, outputs: Any = None, method_name: str | None = None, defaults: Any = None
) -> Any:
    """A `SignatureDef`.

    Args:
      inputs: `TensorInfo`s by name.
      outputs: those of the results.
      method_name: of the service that answers by it.
      defaults: values of inputs that may be left out, by name: tensors, or what becomes one.
    """
    made = SignatureDef()
    for place, given in ((made.inputs, inputs), (made.outputs, outputs)):
        for name, info in (given or {}).items():
            place[name].CopyFrom(info)
    for name, value in (defaults or {}).items():
        made.defaults[name].MergeFromString(make_tensor_proto(value).SerializeToString())
    made.method_name = method_name or ""
    return made


def predict_signature_def(inputs: Any, outputs: Any) -> Any:
    """The signature of a prediction.

    Args:
      inputs: tensors of a graph by name.
      outputs: those of the results.

    Raises:
      ValueError: when there are none.
    """
    for what, given in (("inputs", inputs), ("outputs", outputs)):
        if not given:
            raise ValueError(f"Prediction {what} cannot be None or empty.")
    return build_signature_def(_infos(inputs), _infos(outputs), _own.PREDICT_METHOD_NAME)


def regression_signature_def(examples: Any, predictions: Any) -> Any:
    """The signature of a regression of `tf.train.Example`s.

    Args:
      examples: a tensor of a graph, of strings.
      predictions: a tensor of float32.

    Raises:
      ValueError: when one is missing or of another dtype.
    """
    inputs, outputs = {_own.REGRESS_INPUTS: examples}, {_own.REGRESS_OUTPUTS: predictions}
    return _of_examples("Regression", inputs, outputs, _own.REGRESS_METHOD_NAME)


def classification_signature_def(examples: Any, classes: Any, scores: Any) -> Any:
    """The signature of a classification of `tf.train.Example`s.

    Args:
      examples: a tensor of a graph, of strings.
      classes: a tensor of strings, or None.
      scores: a tensor of float32, or None.

    Raises:
      ValueError: when the examples or both results are missing, or of another dtype.
    """
    inputs = {_own.CLASSIFY_INPUTS: examples}
    given = {_own.CLASSIFY_OUTPUT_CLASSES: classes, _own.CLASSIFY_OUTPUT_SCORES: scores}
    outputs = {name: tensor for name, tensor in given.items() if tensor is not None}
    return _of_examples("Classification", inputs, outputs, _own.CLASSIFY_METHOD_NAME)


def _of_examples(what: str, inputs: Any, outputs: Any, method: str) -> Any:
    if not outputs or any(t is None for t in (*inputs.values(), *outputs.values())):
        raise ValueError(f"{what} signatures have examples and results, got {inputs}, {outputs}.")
    made = build_signature_def(_infos(inputs), _infos(outputs), method)
    if not is_valid_signature(made):
        raise ValueError(
            f"{what} signatures take strings, give strings as classes and float32 else, got {inputs}, {outputs}."
        )
    return made


def _infos(tensors: Any) -> dict[str, Any]:
    return {name: build_tensor_info(tensor) for name, tensor in tensors.items()}


def is_valid_signature(signature_def: Any) -> bool:
    """Whether a `SignatureDef` has what the service of its method takes and gives.

    Args:
      signature_def: the message.
    """
    method = signature_def.method_name
    takes, gives = (
        {k: v.dtype for k, v in m.items()} for m in (signature_def.inputs, signature_def.outputs)
    )
    if method == _own.PREDICT_METHOD_NAME:
        return bool(takes and gives)
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
        takes == {_own.REGRESS_INPUTS: _STRING} and bool(gives) and gives.items() <= allowed.items()
    )


def _named(*names: str) -> SimpleNamespace:
    return SimpleNamespace(**{n: globals().get(n) or getattr(_own, n) for n in names})


def _constants(*beginnings: str) -> SimpleNamespace:
    return _named(*(n for n in _own.__all__ if n.isupper() and n.startswith(beginnings)))


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
            f"tf.compat.v1.saved_model.{name} needs a session, and version 1's graph mode does not exist here: save by "
            "tf.saved_model.save, and load by tf.saved_model.load, whose result has the signatures of models of "
            "version 1, their graph, and prune(feeds, fetches)."
        )
    return getattr(_own, name)
