"""Sessions, which run operations of a graph; in eager execution, they return the values of tensors."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np

from meshflow.core.config.session_config import ConfigProto
from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.runtime.context import ThreadState
from meshflow.core.runtime.device_to_host import to_host
from meshflow.core.runtime.import_paths import get_public_package
from meshflow.core.values import nest
from meshflow.core.values.composite import CompositeTensor
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, read_tensor
from meshflow.core.variables.random_streams import SeedStream
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree
from meshflow.legacy.graph.execution import Run, sort_operations, suspend_recording
from meshflow.legacy.graph.graph import Graph, get_default_graph
from meshflow.legacy.graph.operations import Operation, SymbolicTensor, register_default_session
from meshflow.test.case import to_numpy

__all__ = ["InteractiveSession", "Session", "get_default_session", "get_session", "set_session"]


class _SessionState(ThreadState):
    """Sessions that are the default one, innermost last."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []


_state = _SessionState()


class VariableFetches:
    """When `Session.run` reads the variables that it returns.

    Attributes:
      are_last: Whether it reads them after the other operations, like TensorFlow's reference variables; it reads resource
        variables first.
    """

    are_last = False


class Session:
    """Session of TensorFlow 1, which runs operations of a graph and holds the values of its variables.

    Args:
      target: Ignored.
      graph: The graph; by default the default graph.
      config: Settings; memory of GPUs is always allocated when it is needed.

    Example:
      >>> config = tf.compat.v1.ConfigProto()
      >>> config.gpu_options.allow_growth = True
      >>> session = tf.compat.v1.Session(config=config)
      >>> session.run([tf.constant(1) + 1])
      [np.int32(2)]
    """

    def __init__(self, target: str = "", graph: Graph | None = None, config: ConfigProto | None = None) -> None:  # fmt: skip
        if graph is not None and not isinstance(graph, Graph):
            raise TypeError(
                f"Argument `graph` must be a tf.Graph, but got {type(graph).__name__!r}."
            )
        self._config, self._defaults = config, contextlib.ExitStack()
        self._graph = graph or get_default_graph()
        self._has_own_graph = graph is not None
        self.is_closed = False
        self.variable_values: dict[int, Any] = {}
        # Streams of random operations, which continue in each run.
        self.random_streams: dict[tuple[int | None, ...], SeedStream] = {}

    @property
    def graph(self) -> Graph:
        """Return the graph."""
        return self._graph

    @property
    def graph_def(self) -> Any:
        """Return a description of the graph; see `tf.Graph.as_graph_def`."""
        return self._graph.as_graph_def()

    @property
    def sess_str(self) -> str:
        """Return the target, an empty string."""
        return ""

    def run(
        self,
        fetches: PyTree,
        feed_dict: Mapping[Any, Any] | None = None,
        options: object = None,
        run_metadata: object = None,
    ) -> PyTree:
        """Run the operations that a structure of tensors needs.

        Args:
          fetches: Structure of tensors, operations, variables and names.
          feed_dict: Values that replace tensors, by these or their names.
          options: Ignored.
          run_metadata: Ignored.

        Returns:
          The structure with arrays in place of tensors, and None in place of operations.

        Raises:
          RuntimeError: If the session is closed.
          TypeError: If a fetch or a key of `feed_dict` is no tensor.
          ValueError: If a value does not fit its tensor, or a tensor belongs to another graph.
        """
        self._check_open()
        elements = _map_fetches(self._find_element, fetches)
        leaves: list[Any] = []
        _map_fetches(
            lambda e: leaves.extend(filter(_is_symbolic, nest.flatten_parts([e]))), elements
        )
        with suspend_recording(), self.hold_variables():
            values = self._convert_feeds(feed_dict or {})
            fetched = [leaf for leaf in leaves if id(leaf) not in values]
            roots = [leaf if isinstance(leaf, Operation) else leaf.op for leaf in fetched]
            operations = sort_operations(roots, values)
            reads = {id(o) for o in roots if o.type == "VarHandleOp"}
            operations.sort(key=lambda o: (id(o) in reads) == VariableFetches.are_last)
            run = Run(values, [x for o in operations for x in o.sources])
            with self._graph.scope_fed_learning_phase(values):
                run.execute(operations)

            def get_value(leaf: PyTree) -> Any:
                if isinstance(leaf, Operation):
                    return None
                found = nest.map_parts(run.read, leaf)
                return to_numpy(found if isinstance(found, CompositeTensor) else read_tensor(found))

            return _map_fetches(get_value, elements)

    def _find_element(self, fetch: Any) -> Any:
        """Return the tensor or operation that a fetch refers to."""
        if isinstance(fetch, CompositeTensor):
            return fetch
        if isinstance(fetch, (str, SymbolicTensor, Operation)) or hasattr(
            fetch, "_as_graph_element"
        ):
            try:
                return self._graph.as_graph_element(fetch)
            except (KeyError, ValueError) as error:
                raise ValueError(
                    f"Fetch argument {fetch!r} cannot be interpreted as a Tensor. ({error})"
                ) from None
        is_value = isinstance(fetch, (Tensor, Variable))
        if not is_value and (self._graph.version or self._has_own_graph):
            raise TypeError(
                f"Fetch argument {fetch!r} has invalid type {type(fetch).__name__}, must be a string or Tensor. "
                f"(Can not convert a {type(fetch).__name__} into a Tensor or Operation.)"
            )
        return fetch

    def _convert_feeds(self, feed_dict: Mapping[Any, Any]) -> dict[int, Any]:
        """Return the values of fed tensors as tensors, by the `id` of the fed tensor."""
        values: dict[int, Any] = {}
        for key, value in feed_dict.items():
            if isinstance(key, SparseTensor):
                pairs = list(zip((key.indices, key.values, key.dense_shape), value, strict=True))
            elif isinstance(key, CompositeTensor):
                is_ragged = hasattr(value, "nested_row_splits")
                parts = [value.flat_values, *value.nested_row_splits] if is_ragged else value
                pairs = list(zip(nest.flatten_parts(key), nest.flatten_parts(parts), strict=True))
            else:
                pairs = [(key, value)]
            for fed, part in pairs:
                try:
                    tensor = self._graph.as_graph_element(fed, allow_operation=False)
                except (TypeError, KeyError, ValueError) as error:
                    raise TypeError(f"Cannot interpret feed_dict key as Tensor: {error}") from None
                values[id(tensor)] = self._convert_feed(tensor, part)
        return values

    @staticmethod
    def _convert_feed(tensor: SymbolicTensor, value: PyTree) -> Tensor:
        if isinstance(value, SymbolicTensor):
            raise TypeError(
                "The value of a feed cannot be a tf.Tensor object. Acceptable feed values include Python scalars, "
                f"strings, lists, numpy ndarrays, or TensorHandles. For reference, the tensor object was {value} "
                f"which was passed to the feed with key {tensor}."
            )
        kind = tensor.dtype
        if type(value) is int and kind.is_integer and not kind.min <= value <= kind.max:
            raise TypeError(
                f"Type of feed value {value} with type {type(value)} is not compatible with Tensor type "
                f"{kind.as_numpy_dtype}."
            )
        if isinstance(value, Tensor):
            array: Any = to_host(value.array)
        elif tensor.dtype.dtype == object:
            array = convert_to_tensor(value, dtype=tensor.dtype).array
        else:
            array = np.asarray(value, dtype=tensor.dtype.dtype)
        if not tensor.shape.is_compatible_with(array.shape):
            raise ValueError(
                f"Cannot feed value of shape {array.shape} for Tensor {tensor.name}, which has shape {tensor.shape}"
            )
        # The caller may change the array after the run.
        return convert_to_tensor(np.array(array))

    def _check_open(self) -> None:
        if self.is_closed:
            raise RuntimeError("Attempted to use a closed Session.")

    @contextlib.contextmanager
    def hold_variables(self) -> Iterator[None]:
        """Run a block on the values of the variables in this session.

        Threads that use other sessions of the graph wait for its end; those of this session do not.
        """
        graph, thread = self._graph, threading.get_ident()
        turns, requests, runs = graph.turns, graph.requests, graph.active_runs

        def is_allowed() -> bool:
            if thread in runs:
                return True
            return requests[0] is request and (graph.session is self or not runs)

        with turns:
            request = object()
            requests.append(request)
            try:
                turns.wait_for(is_allowed)
                self.restore_variables()
                runs[thread] += 1
            finally:
                requests.remove(request)
                turns.notify_all()
        try:
            yield
        finally:
            with turns:
                runs[thread] -= 1
                if not runs[thread]:
                    del runs[thread]
                turns.notify_all()

    def restore_variables(self) -> None:
        """Set the variables of the graph to the values that they have in this session.

        Raises:
          RuntimeError: If the session is closed.
        """
        self._check_open()
        graph = self._graph
        if graph.session is self:
            return
        variables = graph.list_variables()
        if graph.session is not None:
            graph.session.variable_values = {id(v): v.get_stored() for v in variables if v.is_set}
        if graph.session is not None or self.variable_values:
            for variable in variables:
                value = self.variable_values.pop(id(variable), None)
                if value is None and variable.initializes_on_read and variable.is_set:
                    # The other session keeps its array, which training may overwrite.
                    value = variable.get_stored().copy()
                variable.reset(value)
        graph.session = self

    @contextlib.contextmanager
    def as_default(self) -> Iterator[Self]:
        """Return a context in which `get_default_session` returns the session."""
        _state.sessions.append(self)
        try:
            yield self
        finally:
            sessions = _state.sessions
            del sessions[len(sessions) - 1 - sessions[::-1].index(self)]

    def make_callable(
        self, fetches: PyTree, feed_list: Iterable[Any] | None = None, accept_options: bool = False
    ) -> Callable[..., PyTree]:
        """Return a function of the values of `feed_list` that runs `fetches`."""
        keys = [] if feed_list is None else list(feed_list)
        return lambda *values: self.run(fetches, dict(zip(keys, values, strict=True)))

    def partial_run_setup(self, fetches: PyTree, feeds: object = None) -> None:
        """Raise an error: a run computes all its fetches at once.

        Raises:
          NotImplementedError: Always.
        """
        raise NotImplementedError("Session.partial_run_setup: use one call of run for all fetches.")

    def list_devices(self) -> list[Any]:
        """Return the devices of this process."""
        return list(get_public_package().config.list_logical_devices())

    def close(self) -> None:
        """Close the session, which cannot run operations afterwards, and free the values of its variables."""
        self.is_closed = True
        self.variable_values.clear()
        if self._graph.session is self:
            for variable in self._graph.list_variables():
                if not variable.initializes_on_read:
                    variable.reset()
            self._graph.session = None

    def __enter__(self) -> Self:
        self._defaults.enter_context(self._graph.as_default())
        self._defaults.enter_context(self.as_default())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self._defaults.close()
        self.close()


class InteractiveSession(Session):
    """`Session` that is the default one until it is closed."""

    def __init__(self, target: str = "", graph: Graph | None = None, config: ConfigProto | None = None) -> None:  # fmt: skip
        super().__init__(target, graph, config)
        if self._has_own_graph:
            self._defaults.enter_context(self._graph.as_default())
        self._defaults.enter_context(self.as_default())

    def close(self) -> None:
        """Close the session."""
        super().close()
        self._defaults.close()


def _is_symbolic(leaf: PyTree) -> bool:
    return isinstance(leaf, (SymbolicTensor, Operation))


def _map_fetches(function: Callable[[Any], Any], fetches: PyTree) -> PyTree:
    """Apply a function to the leaves of fetches; a composite tensor is a leaf."""
    if isinstance(fetches, tuple) and hasattr(fetches, "_fields"):
        return type(fetches)(*[_map_fetches(function, f) for f in fetches])
    if isinstance(fetches, (list, tuple)):
        return type(fetches)([_map_fetches(function, f) for f in fetches])
    if isinstance(fetches, Mapping):
        return type(fetches)([(k, _map_fetches(function, f)) for k, f in fetches.items()])  # type: ignore[call-arg]
    return function(fetches)


@contextlib.contextmanager
def use_session(session: object) -> Iterator[None]:
    """Run a block at once, on the values that the variables have in a session, if it is one."""
    with (
        suspend_recording(),
        session.hold_variables() if isinstance(session, Session) else contextlib.nullcontext(),
    ):
        yield


def get_default_session() -> Session | None:
    """Return the session of the innermost context, or None."""
    return _state.sessions[-1] if _state.sessions else None


def get_session(op_input_list: object = ()) -> Session:
    """Return the default session, or the session of Keras for the default graph."""
    found = get_default_session()
    if found is None:
        graph = get_default_graph()
        found = graph.keras_session
        if found is None or found.is_closed:
            found = graph.keras_session = Session(graph=graph if graph.version else None)
    return found


def set_session(session: Session) -> None:
    """Use a session for Keras in its graph."""
    session.graph.keras_session = session


register_default_session(get_default_session)
