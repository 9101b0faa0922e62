"""Where training is, in a form that can be written down, and how it goes on from there in a new process.

Batches are not written down: a new process goes through the data again, with the random state that the
pass began with, and leaves out the batches that were used.
"""

from __future__ import annotations

import itertools
import random as python_random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from meshflow.core.runtime.errors import ValueNeededError
from meshflow.core.variables import random
from meshflow.core.variables.variable_creation import VariableNeedsEagerError
from meshflow.data.epoch import _nodes

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Resumption", "random_state", "set_random_state", "source_state"]


def random_state() -> dict[str, Any]:
    """The state of all random numbers of the process, as plain JSON values."""
    version, numbers, gauss = python_random.getstate()
    numpy_state: Any = np.random.get_state(legacy=False)
    return {
        **random.state(),
        "numpy": {
            "key": numpy_state["state"]["key"].tolist(),
            "pos": int(numpy_state["state"]["pos"]),
            "has_gauss": int(numpy_state["has_gauss"]),
            "gauss": float(numpy_state["gauss"]),
        },
        "python": [version, list(numbers), gauss],
    }


def set_random_state(state: dict[str, Any], but: frozenset[str] = frozenset()) -> None:
    """Puts back what `random_state` gave, except the streams of some numbers."""
    random.set_state(state, but)


def _set_host_state(state: dict[str, Any]) -> None:
    version, numbers, gauss = state["python"]
    python_random.setstate((version, tuple(numbers), gauss))
    kept = state["numpy"]
    key = np.array(kept["key"], np.uint32)
    np.random.set_state(("MT19937", key, kept["pos"], kept["has_gauss"], kept["gauss"]))


# ---- data ----------------------------------------------------------------------------------


def _random_nodes(dataset: Any) -> dict[str, Any]:
    """The random transformations of a dataset, by their place in it."""
    # A strategy's dataset has the user's inside.
    while not hasattr(dataset, "_parents") and hasattr(dataset, "_source"):
        dataset = dataset._source
    if not hasattr(dataset, "_parents"):
        return {}
    return {str(i): n for i, n in enumerate(_nodes(dataset)) if hasattr(n, "_words")}


def source_state(source: Any) -> dict[str, Any]:
    """What decides the batches of a source's next pass, as plain JSON values."""
    state: dict[str, Any] = {"random": random_state()}
    if source._orders is not None:
        state["rng"] = source._orders.state
    nodes = _random_nodes(getattr(source, "_x", None))
    # A seed that was not drawn yet is drawn in the pass, from the state above.
    state["nodes"] = {
        at: [None if n._words is None else [int(w) for w in n._words], n.epoch]
        for at, n in nodes.items()
    }
    return state


def _set_source_state(source: Any, state: dict[str, Any]) -> None:
    set_random_state(state["random"])
    _set_host_state(state["random"])
    if source._orders is not None and "rng" in state:
        source._orders.state = state["rng"]
    for at, node in _random_nodes(getattr(source, "_x", None)).items():
        if at in state["nodes"]:
            node._words, node.epoch = state["nodes"][at]


class Resumption:
    """Training that goes on where an earlier process was.

    Args:
      position: `epoch`, `step` (within the epoch), `data` (see `DataHandler.position`), `random` and `logs`,
        as they were written down.
      restore: puts the values of all variables back; called again once all variables exist.
    """

    def __init__(self, position: dict[str, Any], restore: Callable[[], None]) -> None:
        self._position, self._restore = position, restore
        self.epoch: int = position["epoch"]
        self.step: int = position["step"]
        self.logs: dict[str, Any] | None = position["logs"]
        self.skip: int = position["data"]["batches"]
        self._began: dict[str, Any] = position["data"]["source"]

    def begin_pass(self, source: Any) -> None:
        """Gives a source of batches the state that it began its pass with."""
        _set_source_state(source, self._began)

    def start(self, model: Any, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches that are left of the epoch, with everything else as it was."""
        first = list(itertools.islice(batches, 1))
        # What changed while batches were left out belongs to the data, which are ahead of the training.
        now, before = random.state()["places"], self._began["random"]["places"]
        of_data = frozenset(n for n, words in now.items() if n in before and words != before[n])
        for batch in first:
            prepare(model, batch)
        self._restore()
        set_random_state(self._position["random"], of_data if self.skip else frozenset())
        return itertools.chain(first, batches)


def prepare(model: Any, batch: Any) -> None:
    """Makes the variables that a model's first training step would make."""
    if hasattr(batch, "_of_worker"):
        # Workers take batches, and the variables are there.
        return
    step = model._step("train")
    trace = getattr(step, "prepare", None)
    if trace is not None:
        try:
            trace(batch)
        except (VariableNeedsEagerError, ValueNeededError):
            return
