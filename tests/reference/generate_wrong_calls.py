"""Write wrong_calls.json, the classes of TensorFlow's errors.

Run with the peers' Python in this folder: `TF_USE_LEGACY_KERAS=1 python generate_wrong_calls.py`.
"""

import json
import os
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
from wrong_calls import CALLS, call, list_modes


def main():
    stored = {text: [call(tf, text, mode) for mode in list_modes(text)] for text in CALLS}
    lines = [f"{json.dumps(text)}: {json.dumps(classes)}" for text, classes in stored.items()]
    Path("wrong_calls.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
