"""Write texts.json: results of `tf.keras.preprocessing.text` and `.sequence`.

Run with the peers' Python from this folder: `TF_USE_LEGACY_KERAS=1 python generate_texts.py`.
"""

import json
import os
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
from text_cases import CASES, run


def main():
    found = {text: run(tf, text) for text in CASES}
    Path("texts.json").write_text(json.dumps(found, indent=0))


if __name__ == "__main__":
    main()
