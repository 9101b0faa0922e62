"""Save a module with all kinds of attributes with TensorFlow to `saved_objects.tar.xz`.

Run in the peers' environment: `.venv-peers/bin/python tests/reference/generate_saved_objects.py`.
With a folder as argument, load and check Meshflow's module in it instead.
"""

import sys
import tarfile
import tempfile
from pathlib import Path

import tensorflow as tf
from saved_object_cases import check, module, signature

TARGET = Path(__file__).parent / "saved_objects.tar.xz"


def main():
    if len(sys.argv) > 1:
        check(tf, tf.saved_model.load(sys.argv[1]), sparse=False)
        return
    root = module(tf, sparse=True)
    with tempfile.TemporaryDirectory() as folder:
        options = tf.saved_model.SaveOptions(function_aliases={"other": root.losses[0]})
        tf.saved_model.save(root, f"{folder}/objects", signature(tf, root), options)
        check(tf, tf.saved_model.load(f"{folder}/objects"), sparse=True)
        with tarfile.open(TARGET, "w:xz") as archive:
            for file in sorted(Path(folder).rglob("*")):
                if file.is_file():
                    archive.add(file, file.relative_to(folder))
    print(TARGET.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
