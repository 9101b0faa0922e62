"""Names of `tf.compat.v1` that are found by a table: `v1_names.txt`, recorded from TensorFlow 2.15.

A name of version 1 is one of a module of this package, another name of a public object, or a function of
version 2 with the arguments of version 1.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from meshflow.core.runtime.unavailable_names import raise_if_unavailable
from meshflow.legacy.compat.public_package import tf as _tf

__all__ = ["Namespace", "find_name", "list_attributes"]

_V1 = "compat.v1."
# Modules with the names of a namespace that version 2 does not have, or has with other behavior.
_MODULES = {
    "": ("op_aliases", "variables", "graph_names", "readers", "sessions"),
    **{name: (name,) for name in ("data", "image", "layers", "lite", "losses", "metrics", "nn")},
    "io": ("io_names",),
    "python_io": ("io_names",),
    "mixed_precision": ("loss_scaling",),
    "saved_model": ("saved_model",),
    "keras.backend": ("sessions",),
    "keras.layers": ("keras_layers",),
    "keras.utils": ("keras_utils",),
    "summary": ("summaries", "graph_names"),
    "train": (
        "train",
        "optimizers",
        "session_hooks",
        "monitored_sessions",
        "learning_rates",
        "graph_names",
    ),
}
# Paths in version 1 by other ones.
_V1_ALIASES = {
    "sparse.placeholder": f"{_V1}sparse_placeholder",
    **{
        f"initializers.{n}": f"{_V1}{n}_initializer"
        for n in ("global_variables", "local_variables", "variables")
    },
    **{
        f"sparse.{n}": f"{_V1}sparse_{n}"
        for n in ("merge", "reduce_max_sparse", "reduce_sum_sparse")
    },
    **{
        f"keras.{kind}.{n}": "keras.losses.cosine_similarity"
        for kind in ("losses", "metrics")
        for n in ("cosine", "cosine_proximity")
    },
    "keras.initializers.normal": "keras.initializers.RandomNormal",
    "keras.initializers.uniform": "keras.initializers.RandomUniform",
    **{f"keras.models.{n}": f"keras.experimental.{n}" for n in ("LinearModel", "WideDeepModel")},
}
# Modules of single names.
_OTHER_MODULES = {
    "QUANTIZED_DTYPES": "meshflow.dtypes",
    "initializers.tables_initializer": "meshflow.legacy.compat.graph_names",
    **{f"summary.{n}": "meshflow.io.protos" for n in ("Event", "SessionLog", "Summary")},
    "ragged.placeholder": "meshflow.legacy.compat.ragged_placeholders",
    "random.get_seed": "meshflow.legacy.compat.op_aliases",
    "random.set_random_seed": "meshflow.legacy.compat.v1",
    **{
        f"ragged.{n}": "meshflow.ops.ragged.values" for n in ("RaggedTensorValue", "constant_value")
    },
    **dict.fromkeys(("string_split", "strings.split"), "meshflow.legacy.compat.text_splits"),
    "test.get_temp_dir": "meshflow.test.build_info",
    "test.mock": "unittest",
    **{
        f"errors.{n}": "meshflow.core.runtime.error_codes"
        for n in ("error_code_from_exception_type", "exception_type_from_error_code")
    },
}
_OTHER_MODULES |= {
    "train.write_graph": "meshflow.io",
    **{
        f"train.{n}": "meshflow.legacy.compat.meta_graphs"
        for n in ("export_meta_graph", "import_meta_graph")
    },
    **{
        f"graph_util.{n}": "meshflow.saved_model.graph.writing.frozen_graphs"
        for n in ("extract_sub_graph", "remove_training_nodes")
    },
    "graph_util.convert_variables_to_constants": "meshflow.legacy.graph.definitions",
    "graph_util.import_graph_def": "meshflow.legacy.compat.v1",
    **dict.fromkeys(
        ("GraphOptions", "OptimizerOptions", "RunMetadata", "RunOptions"),
        "meshflow.core.config.session_config",
    ),
}
_OTHER_MODULES |= {
    f"{namespace}.{n}": "meshflow.legacy.rnn_cells"
    for namespace, text in (
        ("nn", "bidirectional_dynamic_rnn dynamic_rnn static_bidirectional_rnn static_rnn"),
        ("nn.rnn_cell", "BasicLSTMCell BasicRNNCell DeviceWrapper DropoutWrapper GRUCell LSTMCell"),
        ("nn.rnn_cell", "LSTMStateTuple MultiRNNCell RNNCell ResidualWrapper"),
    )
    for n in text.split()
}
# Arguments of version 2 by those of version 1.
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "batch_dim": ("batch_axis",),
    "block_size": ("block_shape",),
    "box_ind": ("box_indices",),
    "bytes": ("input_bytes",),
    "concat_dim": ("axis",),
    "delimiter": ("sep",),
    "dirname": ("path",),
    "device_name_or_function": ("device_name",),
    "dim": ("axis",),
    "dimension": ("axis",),
    "expand_nonconcat_dim": ("expand_nonconcat_dims",),
    "filename": ("path", "pattern"),
    "filter": ("filters",),
    "fn1": ("true_fn",),
    "fn2": ("false_fn",),
    "image": ("input",),
    "input_tensor": ("input",),
    "in_order": ("topdown",),
    "keep_dims": ("keepdims",),
    "kernel": ("filters",),
    "ksizes": ("sizes",),
    "m": ("mean",),
    "newname": ("dst",),
    "newpath": ("dst",),
    "oldname": ("src",),
    "oldpath": ("src",),
    "output_dtype": ("dtype",),
    "preferred_dtype": ("dtype_hint",),
    "rate": ("dilations",),
    "rates": ("dilations",),
    "dilation_rate": ("dilations",),
    "reduction_axes": ("axis",),
    "reduction_indices": ("axis",),
    "seq_dim": ("seq_axis",),
    "split_dim": ("axis",),
    "squeeze_dims": ("axis",),
    "source": ("input",),
    "string_tensor": ("input",),
    "t": ("input",),
    "targets": ("labels",),
    "Targmax": ("output_dtype",),
    "tensor": ("input", "data"),
    "thresh": ("threshold",),
    "v": ("variance",),
    "value": ("input",),
    "values": ("data",),
}
# Arguments that have no effect.
_IGNORED_TEXT = (
    "allow_fast_lookup arg_types arg_values back_prop collections colocate_gradients_with_ops data gate_gradients infer_shape name optimize "
    "parallel_iterations partition_strategy strict summarize swap_memory use_cudnn_on_gpu use_locking validate_indices "
    "validate_shape verify_shape"
)
_IGNORED = frozenset(_IGNORED_TEXT.split())


_KERAS_NAMESPACES = {
    "keras",
    *(f"keras.{n}" for n in ("backend", "initializers", "layers", "losses", "metrics")),
    *(f"keras.{n}" for n in ("models", "utils")),
}


class _Names(NamedTuple):
    """Names of the table.

    Attributes:
      namespaces: Paths of the namespaces.
      aliases: Paths of objects by their paths in `tf.compat.v1`.
      functions: Arguments by the path.
    """

    namespaces: frozenset[str]
    aliases: dict[str, str]
    functions: dict[str, str]


@functools.cache
def _list_names() -> _Names:
    """Return the names of the table."""
    namespaces, aliases, functions = set(_KERAS_NAMESPACES), {}, {}
    for line in Path(__file__).with_name("v1_names.txt").read_text().splitlines():
        kind, _, text = line.partition(" ")
        if kind == "m":
            namespaces.add(text)
        elif kind == "=":
            path, _, aliases[path] = text.partition(" ")
        else:
            path, bracket, arguments = text.partition("(")
            functions[path] = bracket + arguments
    return _Names(frozenset(namespaces), aliases, functions)


def _find_public(path: str) -> Any:
    """Return a public object by its path below the package."""
    found: Any = _tf
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _adapt_arguments(function: Callable[..., Any], path: str, arguments: str) -> Callable[..., Any]:
    """Return a function that takes the arguments of version 1.

    Args:
      function: Function of version 2.
      path: Path of the function below `tf.compat.v1`.
      arguments: Arguments of version 1 with their defaults, in parentheses.
    """
    signature = inspect.signature(
        eval(f"lambda {arguments[1:-1]}: None", {"tf": _tf, **_ENUMERATIONS})
    )
    accepted = inspect.signature(function).parameters
    if list(accepted) == list(signature.parameters):
        return function

    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> object:
        options: dict[str, object] = {}
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            targets = [n for n in (name, *_ARGUMENTS.get(name, ())) if n in accepted]
            if targets and (value is not None or targets[0] not in options):
                options[targets[0]] = value
            elif (
                not targets
                and name not in _IGNORED
                and value is not signature.parameters[name].default
            ):
                raise TypeError(
                    f"tf.{_V1}{path}: the argument {name!r} of TensorFlow 1 is not supported. Use tf.{function.__name__}, "
                    f"which takes {', '.join(accepted)}."
                )
        return function(**options)

    wrapper.__signature__ = signature  # type: ignore[attr-defined]
    return wrapper


class _Enumeration:
    """Placeholder for an enumeration in the text of a signature; its members are None."""

    def __getattr__(self, name: str) -> None:
        return None


_ENUMERATIONS = dict.fromkeys(
    ("UnconnectedGradients", "VariableSynchronization", "VariableAggregation", "Reduction"),
    _Enumeration(),
)


def _import_module(name: str) -> Any:
    package = "graph" if name == "sessions" else "compat"
    return importlib.import_module(f"meshflow.legacy.{package}.{name}")


@functools.cache
def find_name(path: str) -> Any:
    """Return the object with a path below `tf.compat.v1`.

    Raises:
      NotAvailableError: If it does not exist here.
      AttributeError: If TensorFlow 1 does not have it.
    """
    package, _, name = path.rpartition(".")
    if path in _OTHER_MODULES:
        # `unittest.mock` is a module, which its package does not import.
        return pkgutil.resolve_name(f"{_OTHER_MODULES[path]}.{name}")
    if (
        package == ""
        and name in (v1 := importlib.import_module("meshflow.legacy.compat.v1")).__all__
    ):
        return getattr(v1, name)
    for module in _MODULES.get(package, ()):
        names = _import_module(module)
        if name in names.__all__:
            return getattr(names, name)
    table = _list_names()
    if path in table.namespaces:
        raise_if_unavailable(name, f"tf.{_V1}{package}".rstrip("."))
        return Namespace(path)
    raise_if_unavailable(name, f"tf.{_V1}{package}".rstrip("."))
    target = table.aliases.get(path, _V1_ALIASES.get(path, path))
    if target.startswith(_V1):
        return find_name(target.removeprefix(_V1))
    aliases = importlib.import_module("meshflow.legacy.compat.op_aliases").OP_ALIASES
    found = _find_public(aliases.get(path, target))
    if path in table.functions and callable(found):
        return _adapt_arguments(found, path, table.functions[path])
    return found


def list_attributes(path: str) -> set[str]:
    """Return the names of a namespace, without those that version 2 has, too."""
    start = f"{path}." if path else ""
    tables = (*_list_names(), _OTHER_MODULES, _V1_ALIASES)
    paths = (p.removeprefix(start) for table in tables for p in table if p.startswith(start))
    names = {p for p in paths if "." not in p}
    for module in _MODULES.get(path, ()):
        names.update(_import_module(module).__all__)
    return names


class Namespace(ModuleType):
    """Namespace below `tf.compat.v1`.

    Args:
      path: Its path.
    """

    def __init__(self, path: str) -> None:
        super().__init__(f"{__name__.rpartition('.')[0]}.v1.{path}", f"`tf.{_V1}{path}`.")
        self._path = path
        self.__spec__ = ModuleSpec(self.__name__, None, is_package=True)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return find_name(f"{self._path}.{name}")
        except AttributeError as error:
            if isinstance(error, NotImplementedError):
                raise
            raise AttributeError(
                f"module 'tf.{_V1}{self._path}' has no attribute {name!r}"
            ) from error

    def __dir__(self) -> list[str]:
        names = list_attributes(self._path)
        with contextlib.suppress(AttributeError):
            names.update(getattr(_find_public(self._path), "__all__", ()))
        return sorted(names)
