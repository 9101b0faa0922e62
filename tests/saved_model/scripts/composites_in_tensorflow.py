"""Run functions and models of composite tensors that Meshflow saved; prints results as JSON."""

import json
import os
import sys

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import tensorflow as tf

folder, reference = sys.argv[1:]
sys.path.insert(0, reference)
from saved_composite_cases import make_calls, make_models, make_pair, show

pair = make_pair(tf)
loaded = tf.saved_model.load(f"{folder}/functions")
results = {
    name: [show(getattr(loaded, function)(*args)) for function, *args in calls]
    for name, calls in make_calls(tf, pair).items()
}
for name, (_, value) in make_models(tf).items():
    results[name] = show(tf.keras.models.load_model(f"{folder}/{name}")(value))
print(json.dumps(results))
