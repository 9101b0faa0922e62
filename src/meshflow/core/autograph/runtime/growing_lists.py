"""Lists to which every iteration of a staged loop appends.

A loop with a known number of iterations appends a known number of elements. The scan returns the
elements of an iteration as outputs, and the rows of the stacked outputs are added to the list after
the loop. The body may not read such a list, see `name_usage.find_appended_names`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.staging.stacked_rows import register_rows
from meshflow.core.staging.structure import NestedTemplate, is_number, is_tensor_like
from meshflow.core.values.tensor import Tensor

_ROWS = Op("unstack", lambda o, _: list(o[0]))


class GrowingLists:
    """The lists that a loop appends to; other objects are ignored.

    Args:
      values: The values of the variables.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        lists = {id(value): value for value in values if type(value) is list}
        self._lists: list[list[Any]] = list(lists.values())
        self._sizes = [len(items) for items in self._lists]
        # For each list the elements of one iteration, and the indices of the leaves that are outputs.
        self._templates: list[NestedTemplate] = []
        self._output_indices: list[list[int]] = []

    def __bool__(self) -> bool:
        return bool(self._lists)

    def collect(self, run: Callable[[], None]) -> list[list[Any]]:
        """Run an iteration, remove the elements that it appends, and return their tensors by list."""
        self.reset()
        run()
        self._templates, self._output_indices = [], []
        outputs = []
        for items, size in zip(self._lists, self._sizes, strict=True):
            template = NestedTemplate(items[size:])
            leaves = template.leaves
            # Without tensors, appending is a side effect of tracing.
            has_tensors = any(map(is_tensor_like, leaves))
            indices = [
                i
                for i, leaf in enumerate(leaves)
                if has_tensors and (is_tensor_like(leaf) or is_number(leaf))
            ]
            self._templates.append(template)
            self._output_indices.append(indices)
            outputs.append([leaves[i] for i in indices])
        self.reset()
        return outputs

    def reset(self) -> None:
        """Remove the elements that were appended."""
        for items, size in zip(self._lists, self._sizes, strict=True):
            del items[size:]

    def append(self, outputs: list[list[Tensor]], count: int) -> None:
        """Append the elements of all iterations.

        Args:
          outputs: The stacked tensors of `collect`.
          count: Number of iterations.
        """
        rows = zip(
            *(self._lists, self._sizes, self._templates, self._output_indices, outputs), strict=True
        )
        for items, size, template, indices, stacked in rows:
            columns = [apply(_ROWS, (tensor,)) for tensor in stacked]
            if not size and len(indices) == 1:
                register_rows(stacked[0], columns[0])
            for i in range(count if columns else 1):
                leaves = list(template.leaves)
                for index, column in zip(indices, columns, strict=True):
                    leaves[index] = column[i]
                items.extend(template.build(leaves))
