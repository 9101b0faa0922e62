"""Run preprocessing_cases.py in tf-keras; run in the peers' environment."""

import json
import os
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf
from preprocessing_cases import CASES, run


def round_numbers(value):
    if isinstance(value, list):
        return [round_numbers(v) for v in value]
    return round(value, 4) if isinstance(value, float) else value


def main():
    results = {expression: round_numbers(run(tf, np, expression)) for expression in CASES}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in results.items()]
    text = "{\n" + ",\n".join([*lines, f'"version": "{tf.__version__}"']) + "\n}\n"
    Path(__file__).with_name("preprocessing.json").write_text(text)


if __name__ == "__main__":
    main()
