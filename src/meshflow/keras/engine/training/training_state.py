"""The position of a training in a form that files can hold, and its continuation in a new process.

Batches are not stored. A new process reads the data again from the start of the pass, with the
random state of that time, and skips the batches that were used.
"""

from __future__ import annotations

import itertools
import random as python_random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from meshflow.core.runtime.errors import ValueNeededError
from meshflow.core.variables import random_streams
from meshflow.core.variables.variable_creation import VariableNeedsEagerError
from meshflow.data.epoch import iter_nodes
from meshflow.data.node import DatasetNode
from meshflow.environment.types import PyTree
from meshflow.keras.engine.training.shuffle_orders import ShuffleOrders

if TYPE_CHECKING:
    from collections.abc import Callable


class DataSource(Protocol):
    """A source of batches, such as `data_adapter.ArraySource`; `orders` is None if it does not shuffle."""

    orders: ShuffleOrders | None


def get_random_state() -> dict[str, Any]:
    """Return the state of all random generators of the process as JSON values."""
    version, words, gauss = python_random.getstate()
    numpy_state: Any = np.random.get_state(legacy=False)
    return {
        **random_streams.get_state(),
        "numpy": {
            "key": numpy_state["state"]["key"].tolist(),
            "pos": int(numpy_state["state"]["pos"]),
            "has_gauss": int(numpy_state["has_gauss"]),
            "gauss": float(numpy_state["gauss"]),
        },
        "python": [version, list(words), gauss],
    }


def set_random_state(state: dict[str, Any], excluded: frozenset[str] = frozenset()) -> None:
    """Restore the state of TensorFlow's random generators from the result of `get_random_state`.

    Args:
      state: Result of `get_random_state`.
      excluded: Names of generators that keep their state.
    """
    random_streams.set_state(state, excluded)


def _set_host_state(state: dict[str, Any]) -> None:
    """Restore the state of the generators of Python and NumPy."""
    version, words, gauss = state["python"]
    python_random.setstate((version, tuple(words), gauss))
    numpy_state = state["numpy"]
    key = np.array(numpy_state["key"], np.uint32)
    np.random.set_state(
        ("MT19937", key, numpy_state["pos"], numpy_state["has_gauss"], numpy_state["gauss"])
    )


# ---- data ----------------------------------------------------------------------------------


def _find_random_nodes(dataset: Any) -> dict[str, Any]:
    """Return the random transformations of a dataset by their index in its graph."""
    # A strategy's dataset contains that of the user.
    while not isinstance(dataset, DatasetNode) and hasattr(dataset, "_source"):
        dataset = dataset._source
    if not isinstance(dataset, DatasetNode):
        return {}
    return {str(i): n for i, n in enumerate(iter_nodes(dataset)) if hasattr(n, "_words")}


def get_source_state(source: DataSource) -> dict[str, Any]:
    """Return the state that determines the batches of a source's next pass, as JSON values."""
    state: dict[str, Any] = {"random": get_random_state()}
    if source.orders is not None:
        state["rng"] = source.orders.state
    nodes = _find_random_nodes(getattr(source, "_x", None))
    # A seed that is not drawn yet will be drawn during the pass, from the random state above.
    state["nodes"] = {
        index: [None if n._words is None else [int(w) for w in n._words], n.epoch]
        for index, n in nodes.items()
    }
    return state


def _set_source_state(source: DataSource, state: dict[str, Any]) -> None:
    set_random_state(state["random"])
    _set_host_state(state["random"])
    if source.orders is not None and "rng" in state:
        source.orders.state = state["rng"]
    for index, node in _find_random_nodes(getattr(source, "_x", None)).items():
        if index in state["nodes"]:
            node._words, node.epoch = state["nodes"][index]


class Resumption:
    """A position of an earlier process at which training continues.

    Args:
      position: `epoch`, `step` (within the epoch), `data` (see `DataHandler.get_position`),
        `random` and `logs`, as they were stored.
      restore: Function that restores the values of all variables; it is called again once all
        variables exist.
    """

    def __init__(self, position: dict[str, Any], restore: Callable[[], None]) -> None:
        self._position, self._restore = position, restore
        self.epoch: int = position["epoch"]
        self.step: int = position["step"]
        self.logs: dict[str, Any] | None = position["logs"]
        self.num_skipped_batches: int = position["data"]["batches"]
        self._pass_state: dict[str, Any] = position["data"]["source"]

    def restore_pass(self, source: DataSource) -> None:
        """Restore the state that a source of batches had at the start of its pass."""
        _set_source_state(source, self._pass_state)

    def resume_epoch(self, model: Any, batches: Iterator[PyTree]) -> Iterator[PyTree]:
        """Restore the model and the random state, and return the remaining batches of the epoch.

        Args:
          model: The model.
          batches: Iterator over the remaining batches.
        """
        first = list(itertools.islice(batches, 1))
        # Generators that advanced while batches were skipped belong to the data, which are ahead of
        # the training.
        now, before = random_streams.get_state()["places"], self._pass_state["random"]["places"]
        data_generators = frozenset(
            n for n, words in now.items() if n in before and words != before[n]
        )
        for batch in first:
            create_step_variables(model, batch)
        self._restore()
        set_random_state(
            self._position["random"], data_generators if self.num_skipped_batches else frozenset()
        )
        return itertools.chain(first, batches)


def create_step_variables(model: Any, batch: PyTree) -> None:
    """Create the variables that a model's first training step needs."""
    if hasattr(batch, "_select_for_worker"):
        # Workers read the batches, and the variables exist on the servers.
        return
    step = model._get_step("train")
    trace = getattr(step, "prepare", None)
    if trace is not None:
        try:
            trace(batch)
        except (VariableNeedsEagerError, ValueNeededError):
            return
