"""A training with parameter servers whose closures never end, one worker of it slow on purpose.

Arguments: the kind of delay ('python', 'input', 'compute', 'communication', 'recompiling' or 'none'), it in
milliseconds, the slow worker, and how many workers there are.
"""

import sys

import meshflow as tf

kind, delay, slow, workers = sys.argv[1], float(sys.argv[2]) / 1000, *map(int, sys.argv[3:])


def batches(context):
    """A worker's data; what delays it is planted in the worker's process."""
    mine = kind if context.input_pipeline_id == slow else "none"

    def later(owner, name):
        plain = getattr(owner, name)

        def slowly(*args, **kwargs):
            time.sleep(delay)
            return plain(*args, **kwargs)

        setattr(owner, name, slowly)

    def made():
        square = tf.ones([384, 384])
        product = tf.function(lambda x: tf.reduce_sum(x @ x))
        total = tf.function(lambda x: tf.reduce_sum(tf.sin(x)))
        if mine == "python":
            later(worker.Running, "pushes")
        if mine == "communication":
            later(wire.Caller, "call")
        size = 0
        while True:
            if mine == "input":
                time.sleep(delay)
            until = time.monotonic() + (delay if mine == "compute" else 0)
            while time.monotonic() < until:
                product(square).numpy()
            if mine == "recompiling":
                size += 1
                total(tf.zeros([size]))
            yield [[1.0] * 8] * 32, [[1.0]] * 32

    # In the worker, which does not import this file.
    import time

    from meshflow.distribute.parameter_server import wire, worker

    spec = (tf.TensorSpec([32, 8]), tf.TensorSpec([32, 1]))
    return tf.data.Dataset.from_generator(made, output_signature=spec)


class Ready(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("ready", flush=True)


strategy = tf.distribute.ParameterServerStrategy(engine="processes", workers=workers, servers=1)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(64, name="wide"), tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")
data = tf.keras.utils.experimental.DatasetCreator(batches)
model.fit(data, steps_per_epoch=20, epochs=10**6, verbose=0, callbacks=[Ready()])
