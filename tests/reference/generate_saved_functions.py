"""Save functions of many ops with TensorFlow, with inputs and outputs, into `saved_functions.tar.xz`.

Run in the peers' environment: `.venv-peers/bin/python tests/reference/generate_saved_functions.py`.
"""

import tarfile
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf
from saved_function_cases import cases

TARGET = Path(__file__).parent / "saved_functions.tar.xz"


def main():
    module, found = tf.Module(), {}
    for name, (spec, value, function) in cases(tf).items():
        made = tf.function(function, input_signature=[spec])
        setattr(module, name, made)
        found[f"{name}/input"] = np.asarray(value)
        results = made(tf.constant(value, spec.dtype))
        found |= {f"{name}/{k}": v.numpy() for k, v in results.items()}
    with tempfile.TemporaryDirectory() as folder:
        options = tf.saved_model.SaveOptions(save_debug_info=False)
        tf.saved_model.save(module, f"{folder}/functions", signatures={}, options=options)
        np.savez(f"{folder}/functions.npz", **found)
        with tarfile.open(TARGET, "w:xz") as archive:
            for file in sorted(Path(folder).rglob("*")):
                if file.is_file() and "fingerprint" not in file.name:
                    archive.add(file, file.relative_to(folder))
    print(TARGET.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
