"""CPU time of many `tf.data` pipelines next to TensorFlow's, and whether their elements are equal.

    python benchmarks/pipelines.py --peers .venv-peers/bin/python [--only WORD,WORD] [--passes 3]

Both libraries run in one process each, which take turns: first the construction and first pass of a
pipeline, then further passes. Prints the CPU time (all threads) of the first and the median of the
further passes, and "different" where elements, their order or specs differ from TensorFlow's.
"""

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pipeline_cases
import topic_pipelines  # noqa: F401 (registers cases)
import tutorial_pipelines  # noqa: F401 (registers cases)


def describe(value):
    """Return an element as a structure of arrays that both libraries describe equally."""
    if isinstance(value, dict):
        return {k: describe(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(describe(v) for v in value)
    if hasattr(value, "to_list") and hasattr(value, "row_splits"):
        return ("ragged", value.to_list())
    if hasattr(value, "dense_shape"):
        parts = (value.indices, value.values, value.dense_shape)
        return ("sparse", *(np.asarray(p) for p in parts))
    return np.asarray(value.numpy())


def describe_spec(spec):
    """Return a spec as a text without the names of the library."""
    text = repr(spec).replace("tensorflow", "tf").replace("meshflow", "tf")
    return text.replace("<dtype: ", "tf.").replace("'>", "").replace("tf.'", "tf.")


def serve(library):
    """Run commands from the standard input: write files, start a pipeline, run a pass, return elements."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    if library == "tensorflow":
        import tensorflow as tf
    else:
        import meshflow as tf
    # TensorFlow imports Keras with its own package, Meshflow on first use.
    assert tf.keras.layers
    for _ in tf.data.Dataset.range(100).map(lambda n: n + 1).batch(10):
        pass
    data = None
    for line in sys.stdin:
        command = json.loads(line)
        answer = {}
        try:
            folder = Path(command["folder"])
            if command["do"] == "files":
                pipeline_cases.write_files(tf, folder)
            elif command["do"] == "elements":
                spec = describe_spec(data.element_spec)
                values = [describe(element) for element in data]
                with open(folder / f"{library}.pickle", "wb") as file:
                    pickle.dump((spec, values), file)
            else:
                start = time.process_time(), time.perf_counter()
                if command["do"] == "first":
                    data = pipeline_cases.CASES[command["name"]](tf, folder)
                for _ in data:
                    pass
                answer["cpu"] = time.process_time() - start[0]
                answer["wall"] = time.perf_counter() - start[1]
        except Exception as error:
            answer["error"] = f"{type(error).__name__}: {error}"[:300]
        print("\n" + json.dumps(answer), flush=True)


class Server:
    """A process of one library."""

    def __init__(self, python, library, folder):
        self.folder = folder
        self.process = subprocess.Popen(
            [python, __file__, "--serve", library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("PIPELINE_ERRORS") else subprocess.DEVNULL,
            text=True,
        )

    def ask(self, **command):
        self.process.stdin.write(json.dumps(command | {"folder": self.folder}) + "\n")
        self.process.stdin.flush()
        while True:
            line = self.process.stdout.readline()
            if not line:
                raise RuntimeError("the process ended")
            if line.startswith("{"):
                return json.loads(line)


def find_difference(first, second, random):
    """Return the first difference of two lists of elements, or "" if they are equal."""
    if first[0] != second[0]:
        return f"spec {first[0]} instead of {second[0]}"
    if len(first[1]) != len(second[1]) and not random:
        return f"{len(first[1])} elements instead of {len(second[1])}"
    for n, (a, b) in enumerate(zip(first[1], second[1], strict=False)):
        found = _compare(a, b, random)
        if found:
            return f"element {n}: {found}"
    return ""


def _compare(a, b, random):
    if type(a) is not type(b):
        return f"{type(a)} instead of {type(b)}"
    if isinstance(a, dict):
        if list(a) != list(b):
            return f"keys {list(a)} instead of {list(b)}"
        return next(filter(None, (_compare(a[k], b[k], random) for k in a)), "")
    if isinstance(a, tuple):
        pairs = zip(a, b, strict=True)
        return next(filter(None, (_compare(x, y, random) for x, y in pairs)), "")
    if not isinstance(a, np.ndarray):
        return "" if a == b or random else f"{a} instead of {b}"[:300]
    if a.dtype != b.dtype or a.ndim != b.ndim or (a.shape != b.shape and not random):
        return f"{a.dtype}{a.shape} instead of {b.dtype}{b.shape}"
    if random:
        return ""
    equal = np.allclose(a, b, 1e-4, 1e-4) if a.dtype.kind == "f" else np.array_equal(a, b)
    return "" if equal else f"{a.ravel()[:5]} instead of {b.ravel()[:5]}"


def measure(own, peer, name, passes):
    """Return the times of one pipeline and the difference, as a row of the table."""
    first = own.ask(do="first", name=name), peer.ask(do="first", name=name)
    for answer, library in zip(first, ("meshflow", "tensorflow"), strict=True):
        if "error" in answer:
            return f"| {name} | {library}: {answer['error']} |"
    later = [(own.ask(do="next"), peer.ask(do="next")) for _ in range(passes)]
    medians = [statistics.median(pair[i]["cpu"] for pair in later) for i in (0, 1)]
    walls = [statistics.median(pair[i]["wall"] for pair in later) for i in (0, 1)]
    failed = [server.ask(do="elements").get("error") for server in (own, peer)]
    if any(failed):
        difference = f"{failed}"
    else:
        folder = Path(own.folder)
        results = [
            pickle.loads((folder / f"{library}.pickle").read_bytes())
            for library in ("meshflow", "tensorflow")
        ]
        difference = find_difference(*results, name in pipeline_cases.RANDOM)
    start = [answer["cpu"] for answer in first]
    return (
        f"| {name} | {start[0]:.3f} | {start[1]:.3f} | {start[0] / start[1]:.2f} "
        f"| {medians[0]:.4f} | {medians[1]:.4f} | {medians[0] / medians[1]:.2f} "
        f"| {walls[0] / walls[1]:.2f} | {difference} |"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="Python of an environment made by peers.sh")
    parser.add_argument("--only", default="", help="words of names, separated by commas")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--folder", help="folder for the files, written if it is empty")
    parser.add_argument("--serve", help="for the benchmark's own processes")
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    words = options.only.split(",")
    names = [n for n in pipeline_cases.CASES if any(word in n for word in words)]
    print("| pipeline | first | TensorFlow | ratio | later | TensorFlow | ratio | elapsed | |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or temporary
        own = Server(sys.executable, "meshflow", folder)
        peer = Server(options.peers, "tensorflow", folder)
        if not any(Path(folder).iterdir()):
            answer = peer.ask(do="files")
            assert not answer, answer
        for name in names:
            print(measure(own, peer, name, options.passes), flush=True)
        for server in (own, peer):
            server.process.stdin.close()
            server.process.wait()


if __name__ == "__main__":
    main()
