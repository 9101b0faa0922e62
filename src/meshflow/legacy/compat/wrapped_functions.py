"""`tf.compat.v1.wrap_function`: functions of version 1 that keep their variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.environment.types import PyTree
from meshflow.legacy.compat.public_package import tf
from meshflow.legacy.compat.variables import VariableStore, get_variable_scope
from meshflow.saved_model.graph.reading import imported_graphs

__all__ = ["wrap_function"]


def wrap_function(fn: Callable[..., Any], signature: PyTree, name: str | None = None) -> Any:
    """Trace a function of version 1, whose calls share the variables of `get_variable` and `tf.compat.v1.layers`.

    Args:
      fn: Function of tensors; without arguments, a function that calls `tf.compat.v1.import_graph_def`.
      signature: The specs of the arguments; an empty list for a function that imports a graph.
      name: Ignored.

    Returns:
      A `ConcreteFunction`, or an imported graph with the method `prune`.

    Raises:
      UnimplementedError: If a function without arguments imports no graph.

    Example:
      >>> def scale(x):
      ...     return x * tf.compat.v1.get_variable("factor", initializer=2.0)
      >>> doubled = tf.compat.v1.wrap_function(scale, [tf.TensorSpec([], tf.float32)])
      >>> doubled(tf.constant(3.0)).numpy().item(), [v.name for v in doubled.variables]
      (6.0, ['factor:0'])
    """
    if not signature:
        return imported_graphs.wrap_function(fn, signature, name)
    store = VariableStore()

    def run(*args: Any) -> Any:
        scope = get_variable_scope()
        outer_store, scope.store = scope.store, store
        store.start_call()
        try:
            return fn(*args)
        finally:
            scope.store = outer_store

    return tf.function(run, input_signature=signature, autograph=False).get_concrete_function()
