"""Datasets, mostly of files, that TensorFlow and Meshflow both divide between workers."""

from pathlib import Path

DATASETS = {
    "names": "D.from_tensor_slices(names).interleave(tf.data.TextLineDataset, cycle_length=2)",
    "flat": "D.from_tensor_slices(names).flat_map(tf.data.TextLineDataset).batch(2)",
    "listed": "D.list_files('*.txt', shuffle=False).interleave(tf.data.TextLineDataset).repeat(2)",
    "reader": "tf.data.TextLineDataset(names).map(lambda x: x + '!').prefetch(1)",
    "of_names": "tf.data.TextLineDataset(D.from_tensor_slices(names))",
    "one": "tf.data.TextLineDataset(names[:1])",
    "zipped": "D.zip((tf.data.TextLineDataset(names), tf.data.TextLineDataset(names[::-1])))",
    "joined": "tf.data.TextLineDataset(names[:2]).concatenate(tf.data.TextLineDataset(names[2:]))",
    "mixed": "D.zip((tf.data.TextLineDataset(names), D.range(12)))",
    "range": "D.range(7)",
    "batched": "D.range(10).batch(3).map(lambda x: x * 2)",
    "inner": "D.range(4).flat_map(lambda i: D.range(i))",
    "cached": "tf.data.TextLineDataset(names).cache().take(100)",
    "hinted": "D.range(9).shard(E.SHARD_HINT, E.SHARD_HINT).batch(2)",
    "hinted_files": "D.from_tensor_slices(names).shard(E.SHARD_HINT, E.SHARD_HINT).flat_map(tf.data.TextLineDataset)",
}
POLICIES = ("OFF", "AUTO", "FILE", "DATA", "HINT")
WORKERS = (2, 3)


def make_files():
    """Write the files into the current folder; their names."""
    names = []
    for number in range(4):
        names.append(f"{number}.txt")
        Path(names[-1]).write_text("".join(f"{number}{c}\n" for c in "abcd"[: number + 1]))
    return names


def run(tf, shard, text, names, workers, policy):
    """The elements of every worker, or the classes of the error."""
    D, E = tf.data.Dataset, tf.data.experimental
    dataset = eval(text, {"tf": tf, "D": D, "E": E, "names": names})
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = E.AutoShardPolicy[policy]
    dataset = dataset.with_options(options)
    try:
        return [
            [str(e) for e in shard(dataset, workers, index).as_numpy_iterator()]
            for index in range(workers)
        ]
    except Exception as error:
        return {"error": [c.__name__ for c in type(error).__mro__[:-3]]}
