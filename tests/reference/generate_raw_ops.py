"""Write raw_ops.json, the results of TensorFlow 2.15; run in this folder with `tensorflow-cpu==2.15.1`."""

import inspect
import json
import os
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
from raw_op_cases import CALLS, VALUES, run_update
from raw_op_values import flatten


def main():
    names = {**VALUES, "tf": tf, **{n: getattr(tf.raw_ops, n) for n in dir(tf.raw_ops)}}
    stored = {}
    for call in CALLS:
        stored[call] = flatten(eval(call, names))
    for name in dir(tf.raw_ops):
        if name.startswith(("ResourceApply", "ResourceSparseApply")):
            stored[name] = run_update(
                tf, name, inspect.signature(getattr(tf.raw_ops, name)).parameters
            )
    lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in stored.items()]
    Path("raw_ops.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
