"""What methods of datasets make: datasets themselves, whose classes stand above these methods.

The package's face hands the classes in, so that methods know them by name without importing them.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, TypeVar

# The class that has the methods: `Dataset`.
DatasetT = TypeVar("DatasetT")


class Constructors:
    """Classes of datasets, and functions that make datasets, by name."""

    def register(self, *modules: ModuleType) -> None:
        """Takes in what modules offer.

        Args:
          *modules: their `__all__` counts.
        """
        for module in modules:
            vars(self).update((name, getattr(module, name)) for name in module.__all__)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"No kind of dataset is called {name!r}: the `__all__` of a module that `meshflow.data` registers "
            "has to name it."
        )


make = Constructors()
