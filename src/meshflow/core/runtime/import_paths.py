"""Imports of public names by TensorFlow's module paths, independent of the layout of the source files.

`tf.optimizers` and `tf.config.experimental` are attributes that refer to modules with other names.
`from meshflow.optimizers import Adam` must find these modules, and must never load a file again
under a second name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_loader
from types import ModuleType

__all__ = ["FOR_JAX", "install", "public_face"]

_PACKAGE = __name__.partition(".")[0]
# Packages for any JAX program, which are loaded without the rest of Meshflow.
FOR_JAX = ("kernels", "passes")
_ALONE = (*FOR_JAX, "_face", "_version", "cli", "version")


def public_face() -> ModuleType:
    """Return the package that users import; the import of any of its modules has already loaded it."""
    return sys.modules[_PACKAGE]


class _Known(Loader):
    """A loader that returns a module that is already loaded."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just replaced the spec of the module by the spec of its second name.
        module.__spec__ = self._spec


class _PublicPaths(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        parent, _, name = fullname.rpartition(".")
        package = sys.modules.get(parent)
        # The program may have registered the package under another name: sys.modules["tensorflow"]
        # = meshflow.
        if package is None or package.__name__.partition(".")[0] != _PACKAGE:
            return None
        has_own_name = package.__name__ == parent
        if has_own_name and fullname.split(".")[1] not in _ALONE:
            # Modules rely on the side effects of importing the public names, for example tensor operators.
            importlib.import_module(f"{_PACKAGE}._face")
            if fullname in sys.modules:
                # The import above loaded the module. The import system would execute it again by its own
                # spec, so the spec is replaced.
                loaded = sys.modules[fullname]
                spec = loaded.__spec__ = spec_from_loader(fullname, _Known(loaded))
                return spec
        if has_own_name and PathFinder.find_spec(fullname, path) is not None:
            return None
        attribute = getattr(package, name, None)
        if attribute is None and not has_own_name:
            try:
                attribute = importlib.import_module(f"{package.__name__}.{name}")
            except ModuleNotFoundError:
                return None
        return (
            spec_from_loader(fullname, _Known(attribute))
            if isinstance(attribute, ModuleType)
            else None
        )


def install() -> None:
    """Make `import meshflow.a.b` find the module to which the attribute `meshflow.a.b` refers."""
    if not any(isinstance(finder, _PublicPaths) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PublicPaths())
