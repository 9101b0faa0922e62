"""Write reports.json: TensorFlow's results of the programs in report_cases.py.

TF_USE_LEGACY_KERAS=1 python tests/reference/generate_reports.py
"""

import json
import tempfile
from pathlib import Path

import tensorflow as tf
from report_cases import CASES


def shorten(value):
    """Keep the class of an exception and leave out its base classes."""
    if isinstance(value, dict):
        return {key: shorten(item) for key, item in value.items()}
    if isinstance(value, list):
        return value[:1] if value[-1:] == ["object"] else [shorten(item) for item in value]
    return round(value, 7) if isinstance(value, float) else value


def main():
    results = {}
    for name, case in CASES.items():
        tf.keras.backend.clear_session()
        with tempfile.TemporaryDirectory() as folder:
            results[name] = shorten(case(tf, Path(folder)))
    text = json.dumps(results, separators=(",", ":"))
    Path(__file__).with_name("reports.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
