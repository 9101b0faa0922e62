"""Adds Meshflow's packages `tensorflow`, `keras` and `tf_keras` to `sys.path`; the .pth file calls it when Python starts."""

import os
import sys

_NAMES = ("tensorflow", "keras", "tf_keras")


def add_packages() -> None:
    """Add the packages, unless TensorFlow or Keras is installed.

    Only the standard modules that Python has already imported are used, because all processes run this.
    """
    for folder in sys.path:
        for name in _NAMES:
            if os.path.isfile(os.path.join(folder, name, "__init__.py")):
                if os.path.basename(folder) != "packages":
                    print(
                        f"meshflow-as-tensorflow: `import {name}` loads the package in {folder}, not Meshflow. Uninstall "
                        f"one of them: pip uninstall {' '.join(_NAMES)}, or pip uninstall meshflow-as-tensorflow.",
                        file=sys.stderr,
                    )
                return
    for folder in sys.path:
        packages = os.path.join(folder, "meshflow", "shims", "packages")
        if os.path.isdir(packages):
            sys.path.append(packages)
            return
