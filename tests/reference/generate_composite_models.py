"""Write `composite_models.json`: results of `composite_model_cases.py` with TensorFlow."""

import json
from pathlib import Path

import tensorflow as tf
from composite_model_cases import CASES

results = {name: run(tf) for name, run in CASES.items()}
path = Path(__file__).with_name("composite_models.json")
path.write_text(json.dumps(results, separators=(",", ":")).replace('],"', '],\n"') + "\n")
