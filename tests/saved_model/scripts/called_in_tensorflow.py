"""Calls functions of saved modules in TensorFlow: FOLDER has a folder for each, with arguments and a place for results beside it."""

import os
import pathlib
import pickle
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import tensorflow as tf

for path in sorted(pathlib.Path(sys.argv[1]).glob("*.calls")):
    loaded = tf.saved_model.load(str(path.with_suffix("")))
    results = []
    for name, arguments in pickle.loads(path.read_bytes()):
        called = loaded.signatures[name[1:]] if name.startswith(":") else getattr(loaded, name)
        given = [tf.constant(a) for a in arguments]
        if name.startswith(":"):
            (key,) = called.structured_input_signature[1]
            found = called(**{key: given[0]})
        else:
            found = called(*given)
        results.append([t.numpy() for t in tf.nest.flatten(found)])
    path.with_suffix(".results").write_bytes(pickle.dumps(results))
