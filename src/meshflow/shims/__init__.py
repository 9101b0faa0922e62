"""Import shims: `import tensorflow`, `keras` and `tf_keras` load Meshflow.

Libraries also import `tensorflow_estimator`, a dependency of TensorFlow, for classes that Meshflow does not have.

The folder `packages` has a small package and the metadata of a distribution for each of these
names. `activate` adds it to `sys.path`, and to PYTHONPATH for processes that this one starts.
`shim_modules` creates their modules, and `module_table` lists public equivalents of TensorFlow's
private names.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

PACKAGE_FOLDER = str(Path(__file__).parent / "packages")
# Workers that do not inherit PYTHONPATH activate the shims if this variable is set.
_VARIABLE = "MESHFLOW_SHIMS"
_NAMES = ("tensorflow", "keras", "tf_keras")


def is_active() -> bool:
    """Return whether `import tensorflow` loads Meshflow."""
    return PACKAGE_FOLDER in sys.path


def activate() -> None:
    """Make `import tensorflow`, `keras` and `tf_keras` load Meshflow here and in new processes.

    Raises:
      ImportError: If the process has already imported another package of one of these names.
    """
    for name in _NAMES:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None and not file.startswith(PACKAGE_FOLDER):
            raise ImportError(
                f"{name} is already imported from {file}. Activate Meshflow's shims first: start the program with "
                "`meshflow run`, or restart the notebook's kernel and run `%load_ext meshflow` first."
            )
    if not is_active():
        # The first entry is the folder of the script, which precedes PYTHONPATH.
        sys.path.insert(1, PACKAGE_FOLDER)
        importlib.invalidate_caches()
    os.environ.update(make_environment())


def activate_as_requested() -> None:
    """Activate the shims in a worker of a process in which they are active."""
    if os.environ.get(_VARIABLE):
        activate()


def make_environment() -> dict[str, str]:
    """Return environment variables of processes in which `import tensorflow` loads Meshflow."""
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [PACKAGE_FOLDER, *(f for f in folders if f and f != PACKAGE_FOLDER)]
    return {"PYTHONPATH": os.pathsep.join(folders), _VARIABLE: "1"}
