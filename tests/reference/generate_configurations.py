"""Write configurations of tf-keras' layers, losses, metrics and optimizers; run in the peers'
environment.

Nested configurations keep their class and arguments, without their module.
"""

import json
import os
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
from configuration_cases import LAYERS, OTHERS, made, plain


def main():
    found = {"version": tf.__version__}
    for name in LAYERS:
        found[f"layers.{name}"] = plain(made(tf.keras, f"layers.{name}").get_config())
    for family, names in OTHERS.items():
        for name in names:
            found[f"{family}.{name}"] = plain(made(tf.keras, f"{family}.{name}").get_config())
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items()]
    path = Path(__file__).with_name("configurations.json")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
