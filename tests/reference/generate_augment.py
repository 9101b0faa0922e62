"""Write augment.json: results of `tf.keras.preprocessing.image`.

Run with the peers' Python from this folder: `TF_USE_LEGACY_KERAS=1 python generate_augment.py`.
"""

import json
import os
import tempfile
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
from augment_cases import CASES, run
from folder_cases import make_files


def main():
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder))
        os.chdir(folder)
        found = {text: run(tf, text) for text in CASES}
        os.chdir(here)
    (here / "augment.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
