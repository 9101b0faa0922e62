"""`tf.compat.v1.train.init_from_checkpoint`: initial values of variables from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from meshflow.checkpoint.assignment import assign_stored_value
from meshflow.checkpoint.checkpoint import open_latest_checkpoint
from meshflow.checkpoint.formats import StoredCheckpoint
from meshflow.core.runtime.errors import InvalidValueError, NotFoundError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable, get_full_name
from meshflow.environment.types import StrPath
from meshflow.legacy.compat.saver import find_key
from meshflow.legacy.compat.variables import get_variable_scope
from meshflow.legacy.graph.graph import get_default_graph, has_explicit_graph
from meshflow.legacy.graph.variables import GraphVariable

AssignmentMap: TypeAlias = (
    Mapping[str, Variable | str | list[Variable]] | Iterable[tuple[str, Variable | str]]
)


def init_from_checkpoint(ckpt_dir_or_file: StrPath, assignment_map: AssignmentMap) -> None:
    """Initialize variables with the values of a checkpoint.

    The initializers of variables of a graph then read the checkpoint. Other variables get the values immediately.

    Args:
      ckpt_dir_or_file: Path of a checkpoint, or of a directory with a `checkpoint` file.
      assignment_map: Variables by their names in the checkpoint, as a dictionary or pairs. A variable of
        `get_variable` in a graph may be replaced by its name; `"scope/": "other/"` pairs all variables of a scope
        with values of the same names in another scope, and `"/"` is the outermost scope.

    Raises:
      ValueError: If a variable or value does not exist, their shapes differ, or only one of two names ends with "/".
      NotFoundError: If there is no checkpoint.

    Example:
      >>> import tempfile
      >>> tf1 = tf.compat.v1
      >>> path = tf1.train.Saver([tf.Variable([1.0, 2.0], name="old/w")]).save(None, tempfile.mkdtemp() + "/model")
      >>> with tf.Graph().as_default(), tf1.Session() as session:
      ...     with tf1.variable_scope("new"):
      ...         w = tf1.get_variable("w", [2])
      ...     tf1.train.init_from_checkpoint(path, {"old/": "new/"})
      ...     session.run(tf1.global_variables_initializer())
      ...     session.run(w)
      array([1., 2.], dtype=float32)
    """
    checkpoint = open_latest_checkpoint(ckpt_dir_or_file)
    pairs = assignment_map.items() if isinstance(assignment_map, Mapping) else assignment_map
    for stored_name, target in pairs:
        for name, variable in _match_variables(checkpoint, stored_name, target):
            try:
                key = find_key(checkpoint, name)
            except NotFoundError as error:
                raise InvalidValueError(
                    f"Tensor {name} is not found in the checkpoint. {error}"
                ) from None
            _initialize(checkpoint, key, variable)


def _match_variables(
    checkpoint: StoredCheckpoint, stored_name: str, target: object
) -> Iterator[tuple[str, Variable]]:
    """Yield pairs of a name in the checkpoint and a variable."""
    if isinstance(target, list) and len(target) == 1:
        (target,) = target
    if not isinstance(target, str):
        if not hasattr(target, "assign"):
            raise ValueError(
                f"init_from_checkpoint: expected a variable for {stored_name!r}, got {target!r}."
            )
        yield stored_name, target  # type: ignore[misc]
        return
    variables = _list_variables()
    if target in variables:
        yield stored_name, variables[target]
        return
    if not target.endswith("/") or not stored_name.endswith("/"):
        raise ValueError(
            f"Assignment map with scope only name {target} should map to scope only {stored_name}. Should be "
            f"'scope/': 'other_scope/', or pass a variable: there is none with the name {target!r} among "
            f"{sorted(variables)[:10]}. In eager execution, variables cannot be looked up by name."
        )
    prefix, stored_prefix = target.lstrip("/"), stored_name.lstrip("/")
    names = [name for name in variables if name.startswith(prefix)]
    if not names:
        raise ValueError(
            f"There are no variables in the scope {target!r}, only {sorted(variables)[:10]}."
        )
    for name in names:
        yield stored_prefix + name.removeprefix(prefix), variables[name]


def _list_variables() -> dict[str, Variable]:
    """Return the variables of the default graph, or those that a function of version 1 tracks, by name."""
    if has_explicit_graph():
        return {get_full_name(v): v for v in get_default_graph().list_variables()}
    store = get_variable_scope().store
    return {} if store is None else store.variables_by_name


def _initialize(checkpoint: StoredCheckpoint, key: str, variable: Variable) -> None:
    if not isinstance(variable, GraphVariable):
        assign_stored_value(checkpoint, key, variable)
        return
    shape = tuple(checkpoint.open(key).shape)
    if not variable.shape.is_compatible_with(shape):
        raise ValueError(
            f"Shape of variable {variable.name} ({variable.shape}) doesn't match with shape of tensor {key} ({shape}) "
            f"from checkpoint reader of {checkpoint.path}."
        )

    def read_value() -> Tensor:
        array = checkpoint.read_shareable(key)
        return convert_to_tensor(array.astype(variable.dtype.as_numpy_dtype, copy=False))

    variable.replace_initial_value(read_value, "checkpoint_initializer")
