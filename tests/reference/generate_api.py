"""Write api_values.json, the results of TensorFlow 2.15; run in this folder with `tensorflow-cpu==2.15.1`."""

import json
import os
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
from api_cases import CASES
from raw_op_values import flatten


def main():
    lines = [f"{json.dumps(name)}: {json.dumps(flatten(case(tf)))}" for name, case in CASES.items()]
    Path("api_values.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
