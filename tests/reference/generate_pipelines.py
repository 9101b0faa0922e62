"""Write pipelines.json: random pipelines of tf.data, with their elements by TensorFlow, and the error at the end.

Run with the peers' Python from this folder: `python generate_pipelines.py`.
"""

import json
import os
import random

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf

COUNT = 200
SOURCES = [
    "D.range({a})",
    "D.range({a}, {b})",
    "D.from_tensor_slices(np.arange({b}) * {a})",
    "D.from_tensors(np.int64({a})).repeat({b})",
    "D.from_generator(lambda: range({b}), output_signature=tf.TensorSpec([], tf.int64))",
    "D.from_tensor_slices(np.arange({b})).enumerate({a}).map(lambda i, x: i * x)",
]
# Elements are int64 scalars before and after each.
STEPS = [
    ".map(lambda x: x * {a} - {b})",
    ".map(lambda x: tf.where(x % 2 == 0, x // 2, {a} * x + 1), num_parallel_calls=2)",
    ".map(lambda x: tf.numpy_function(lambda v: v + np.int64({a}), [x], tf.int64)).map(lambda x: tf.reshape(x, []))",
    ".filter(lambda x: x % {c} != 1)",
    ".take({b})",
    ".skip({a})",
    ".take_while(lambda x: x < {b} * 5)",
    ".shard({c}, {a} % {c})",
    ".repeat({a})",
    ".repeat().take({b})",
    ".prefetch({a})",
    ".cache()",
    ".cache().repeat(2)",
    ".batch({c}).unbatch()",
    ".batch({c}, drop_remainder=True).unbatch()",
    ".batch({c}).batch({a}).unbatch().unbatch()",
    ".batch({c}).rebatch({a}).unbatch()",
    ".padded_batch({c}).map(lambda b: b * 2).unbatch()",
    ".map(lambda x: tf.fill([x % 3], x)).padded_batch({c}, padding_values=np.int64({a})).map(tf.reduce_sum)",
    ".window({c}, shift={a}).flat_map(lambda w: w)",
    ".window({c}, stride={a}, drop_remainder=True).flat_map(lambda w: w.batch({b}).map(tf.reduce_sum))",
    ".window({a}, shift={c}, stride=2).flat_map(lambda w: w.batch({c})).unbatch()",
    ".interleave(lambda x: D.range(x % 4, 5 + {a}), cycle_length={a}, block_length={c})",
    ".interleave(lambda x: D.from_tensors(x).repeat({a}), cycle_length={c})",
    ".flat_map(lambda x: D.range(x % {c}))",
    ".flat_map(lambda x: D.from_tensors(x).concatenate(D.range({a})))",
    ".concatenate(D.range({b}, {b} + {a}))",
    ".scan(np.int64({a}), lambda s, x: (s + x, s - x))",
    ".scan(np.int64(0), lambda s, x: ((s + x) % {b}, s))",
    ".group_by_window(lambda x: x % {c}, lambda k, d: d.batch({a}), window_size={a}).unbatch()",
    ".group_by_window(lambda x: x % 3, lambda k, d: d.map(lambda x: x + k), window_size_func=lambda k: k + {a})",
    ".map(lambda x: tf.fill([x % 5], x)).bucket_by_sequence_length("
    "lambda v: tf.shape(v)[0], [2, 4], [{a}, {c}, 2]).map(tf.reduce_sum)",
    ".enumerate().map(lambda i, x: x - i)",
    ".unique()",
    ".apply(lambda d: D.zip((d, D.range({b}))).map(lambda x, y: x + y))",
    ".apply(lambda d: D.zip({{'a': d, 'b': d.skip({a})}}).map(lambda e: e['a'] * e['b'] % 100))",
    ".apply(lambda d: D.choose_from_datasets([d, D.range({b})], D.range({b}).map(lambda i: i % 2), {t}))",
    ".apply(lambda d: D.sample_from_datasets([d, D.range({b})], [1.0, 0.0]))",
    ".apply(lambda d: D.from_tensors(d.reduce(np.int64({a}), lambda s, x: s + x)))",
    ".apply(E.ignore_errors())",
    ".apply(lambda d: d.snapshot(folder()))",
    ".cache(folder() + '/cache')",
]


def pipeline(rng):
    """The text of a random pipeline."""
    steps = [rng.choice(SOURCES), *rng.choices(STEPS, k=rng.randint(1, 5))]
    steps.append(
        rng.choice(
            ["", "", ".batch({c})", ".batch({c}, drop_remainder=True)", ".padded_batch({a})"]
        )
    )
    return "".join(
        s.format(
            a=rng.randint(1, 4), b=rng.randint(3, 12), c=rng.randint(2, 5), t=rng.random() < 0.5
        )
        for s in steps
    )


def main():
    import tempfile

    names = {
        "tf": tf,
        "D": tf.data.Dataset,
        "E": tf.data.experimental,
        "np": np,
        "folder": tempfile.mkdtemp,
    }
    rng = random.Random(4)
    found = {}
    # Each step at least twice.
    texts = ["D.range(11)" + s.format(a=a, b=7, c=3, t=a < 2) for s in STEPS for a in (1, 2)]
    while len(found) < COUNT:
        text = texts.pop() if texts else pipeline(rng)
        elements = []
        try:
            for element in eval(text, dict(names)).as_numpy_iterator():
                elements.append(np.asarray(element).tolist())
                if len(elements) > 60:
                    break
        except tf.errors.OpError as error:
            elements.append(type(error).__name__)
        if len(elements) <= 60 and (elements or text.startswith("D.range(11)")):
            found[text] = elements
    with open("pipelines.json", "w") as file:
        file.write("{\n")
        lines = [
            f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in found.items()
        ]
        file.write(",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
