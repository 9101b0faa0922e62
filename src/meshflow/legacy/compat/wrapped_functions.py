"""`tf.compat.v1.wrap_function`: functions of version 1 that keep their variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.core.values.specs import TypeSpec
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree
from meshflow.legacy.compat.public_package import tf
from meshflow.legacy.compat.variables import VariableStore, get_variable_scope
from meshflow.saved_model.graph.reading import imported_graphs


def wrap_function(fn: Callable[..., Any], signature: PyTree, name: str | None = None) -> Any:
    """Trace a function of version 1, whose calls share the variables that it creates, and `tf.compat.v1.layers`.

    Args:
      fn: Function of tensors; without arguments, it may call `tf.compat.v1.import_graph_def`.
      signature: The arguments: specs of tensors, and other values.
      name: Ignored.

    Returns:
      A `ConcreteFunction` of the tensors, or an imported graph with the method `prune`.

    Example:
      >>> def scale(x):
      ...     return x * tf.compat.v1.get_variable("factor", initializer=2.0)
      >>> doubled = tf.compat.v1.wrap_function(scale, [tf.TensorSpec([], tf.float32)])
      >>> doubled(tf.constant(3.0)).numpy().item(), [v.name for v in doubled.variables]
      (6.0, ['factor:0'])
    """
    store, created, leaves = VariableStore(), list[Variable](), tf.nest.flatten(signature)

    def run(*tensors: Any) -> Any:
        supply, variables = iter(tensors), iter(list(created))

        def create(next_creator: Callable[..., Variable], **kwargs: Any) -> Variable:
            """Return the variable that an earlier call has created at this place, or create it."""
            variable = next(variables, None)
            if variable is None:
                variable = next_creator(**kwargs)
                created.append(variable)
            return variable

        values = [next(supply) if isinstance(leaf, TypeSpec) else leaf for leaf in leaves]
        scope = get_variable_scope()
        outer_store, scope.store = scope.store, store
        store.start_call()
        try:
            with tf.variable_creator_scope(create):
                return fn(*tf.nest.pack_sequence_as(signature, values))
        finally:
            scope.store = outer_store

    if not leaves:
        imported = imported_graphs.find_import(run)
        if imported is not None:
            return imported
    specs = [leaf for leaf in leaves if isinstance(leaf, TypeSpec)]
    return tf.function(run, input_signature=specs, autograph=False).get_concrete_function()
