"""Milliseconds per `fit` step of a model with one Keras: `step_keras.py meshflow|keras cnn|lm float32|bfloat16 batch`.

`keras` is Keras 3 with the backend that KERAS_BACKEND names. Prints one JSON object.
"""

import json
import os
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import models
import numpy as np

STEPS, ROUNDS = 4, 3


def main():
    library, name, precision, batch = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    if library == "meshflow":
        import meshflow

        keras, version = meshflow.keras, meshflow.__version__
    else:
        import keras

        version = keras.__version__
    keras.utils.set_random_seed(0)
    policy = precision if precision == "float32" else f"mixed_{precision}"
    keras.mixed_precision.set_global_policy(policy)
    rng = np.random.default_rng(0)
    if name == "cnn":
        model = models.cnn(keras)
        loss = keras.losses.SparseCategoricalCrossentropy()
        x = rng.random((batch * STEPS, 32, 32, 3), np.float32)
        y = rng.integers(0, 10, batch * STEPS)
    else:
        model = models.language_model(keras)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        x = rng.integers(0, models.VOCABULARY, (batch * STEPS, models.LENGTH)).astype("int32")
        y = np.roll(x, -1, 1)
    model.compile(keras.optimizers.Adam(), loss)
    model.fit(x, y, batch_size=batch, verbose=0)
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        model.fit(x, y, batch_size=batch, verbose=0)
        times.append((time.perf_counter() - start) / STEPS * 1e3)
    print(
        json.dumps(
            {
                "ms": sorted(times)[ROUNDS // 2],
                "version": version,
                "parameters": model.count_params(),
            }
        )
    )


if __name__ == "__main__":
    main()
