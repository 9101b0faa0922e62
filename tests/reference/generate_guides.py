"""Write `guides.json`: results of `guide_cases.py` with TensorFlow."""

import json
from pathlib import Path

import tensorflow as tf
from guide_cases import CASES

results = {name: run(tf) for name, run in CASES.items()}
path = Path(__file__).with_name("guides.json")
path.write_text(json.dumps(results, separators=(",", ":")).replace('],"', '],\n"') + "\n")
