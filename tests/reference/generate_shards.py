"""Write shards.json: how TensorFlow divides datasets between workers.

Run with the peers' Python from this folder: `python generate_shards.py`.
"""

import json
import os
import tempfile
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
from shard_cases import DATASETS, POLICIES, WORKERS, make_files, run
from tensorflow.python.data.experimental.ops import distribute


def main():
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        names = make_files()
        found = {
            f"{key} {workers} {policy}": run(
                tf, distribute._AutoShardDataset, text, names, workers, policy
            )
            for key, text in DATASETS.items()
            for workers in WORKERS
            for policy in POLICIES
        }
        os.chdir(here)
    (here / "shards.json").write_text(json.dumps(found, indent=0))


if __name__ == "__main__":
    main()
