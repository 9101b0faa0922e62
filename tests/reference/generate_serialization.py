"""Write the serialized forms of serialization_cases.py by tf-keras; run in the peers' environment."""

import json
import os
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
from serialization_cases import CASES, serialized


def main():
    lines = [f"{json.dumps('version')}: {json.dumps(tf.__version__)}"]
    lines += [f"{json.dumps(name)}: {json.dumps(serialized(tf.keras, name))}" for name in CASES]
    path = Path(__file__).with_name("serialized.json")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
