"""Write tf-keras' answers for the objects and models of sweep_cases.py; run in the peers'
environment."""

import json
import os
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
from sweep_cases import MODELS, SEEDED, made, objects, said_of_model, text_of


def main():
    keras, found = tf.keras, {"version": tf.__version__}
    for name in objects():
        found[name] = text_of(keras.saving.serialize_keras_object(made(keras, name)))
        if "seed=" in name and name.startswith("initializers"):
            for shape in SEEDED:
                values = made(keras, name)(eval(shape)).numpy().ravel()
                found[f"{name}{shape}"] = [float(f"{v:.6g}") for v in values]
    for name in MODELS:
        found[name] = said_of_model(keras, name)
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items()]
    Path(__file__).with_name("sweep.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
