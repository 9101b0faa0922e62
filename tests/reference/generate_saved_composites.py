"""Save functions and models of composite tensors with TensorFlow, with results, into `saved_composites.tar.xz`.

Run in the peers' environment: `TF_USE_LEGACY_KERAS=1 .venv-peers/bin/python tests/reference/generate_saved_composites.py`.
"""

import json
import tarfile
import tempfile
from pathlib import Path

import tensorflow as tf
from saved_composite_cases import (
    make_calls,
    make_foreign_calls,
    make_foreign_module,
    make_models,
    make_module,
    make_pair,
    show,
)

TARGET = Path(__file__).parent / "saved_composites.tar.xz"


def main():
    pair = make_pair(tf)
    module = make_module(tf, pair)
    options = tf.saved_model.SaveOptions(save_debug_info=False)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, f"{folder}/functions", options=options)
        results = {
            name: [show(getattr(module, function)(*args)) for function, *args in calls]
            for name, calls in make_calls(tf, pair).items()
        }
        foreign = make_foreign_module(tf)
        tf.saved_model.save(foreign, f"{folder}/foreign", options=options)
        for name, calls in make_foreign_calls(tf).items():
            results[f"foreign_{name}"] = [show(getattr(foreign, f)(*args)) for f, *args in calls]
        for name, (model, value) in make_models(tf).items():
            tf.keras.models.save_model(model, f"{folder}/{name}", save_format="tf", options=options)
            results[name] = show(model(value))
        Path(folder, "results.json").write_text(json.dumps(results))
        with tarfile.open(TARGET, "w:xz") as archive:
            for file in sorted(Path(folder).rglob("*")):
                if file.is_file() and "fingerprint" not in file.name:
                    archive.add(file, file.relative_to(folder))
    print(TARGET.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
