"""Write folders.json: results of Keras' datasets of folders and series.

Run with the peers' Python from this folder: `TF_USE_LEGACY_KERAS=1 python generate_folders.py`.
"""

import json
import os
import tempfile
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
from folder_cases import CASES, make_files, run


def main():
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder))
        os.chdir(folder)
        found = {text: run(tf, text) for text in CASES}
        os.chdir(here)
    (here / "folders.json").write_text(json.dumps(found, indent=0))


if __name__ == "__main__":
    main()
