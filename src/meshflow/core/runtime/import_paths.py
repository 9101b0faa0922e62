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

__all__ = ["JAX_PACKAGES", "get_public_package", "install_finder"]

_PACKAGE = __name__.partition(".")[0]
# Packages for any JAX program, which are loaded without the rest of Meshflow.
JAX_PACKAGES = ("kernels", "passes")
_STANDALONE = (
    *JAX_PACKAGES,
    "__main__",
    "_api",
    "_version",
    "cli",
    "environment",
    "shims",
    "version",
)


def get_public_package() -> ModuleType:
    """Return the package that users import; the import of any of its modules has already loaded it."""
    return sys.modules[_PACKAGE]


class _LoadedModuleLoader(Loader):
    """A loader that returns a module that is already loaded."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just replaced the spec of the module by the spec of its second name.
        module.__spec__ = self._spec


class _PublicPathFinder(MetaPathFinder):
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
        if has_own_name and fullname.split(".")[1] not in _STANDALONE:
            # Modules rely on the side effects of importing the public names, for example tensor operators.
            importlib.import_module(f"{_PACKAGE}._api")
            if fullname in sys.modules:
                # The import above loaded the module. The import system would execute it again by its own
                # spec, so the spec is replaced.
                loaded = sys.modules[fullname]
                spec = loaded.__spec__ = spec_from_loader(fullname, _LoadedModuleLoader(loaded))
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
            spec_from_loader(fullname, _LoadedModuleLoader(attribute))
            if isinstance(attribute, ModuleType)
            else None
        )


def install_finder() -> None:
    """Make `import meshflow.a.b` find the module to which the attribute `meshflow.a.b` refers."""
    if not any(isinstance(finder, _PublicPathFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PublicPathFinder())
