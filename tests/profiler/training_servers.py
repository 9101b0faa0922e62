"""Train with parameter servers and endless closures, with one worker slowed on purpose.

Arguments: the type of delay ('python', 'input', 'compute', 'communication', 'recompiling' or
'none'), the delay in milliseconds, the slow worker, and the number of workers.
"""

import sys

import meshflow as tf

kind, delay, slow, workers = sys.argv[1], float(sys.argv[2]) / 1000, *map(int, sys.argv[3:])


def batches(context):
    """Return a worker's data; the delay is injected in the worker's process, which does not import
    this file."""
    import itertools
    import time

    from meshflow.distribute.parameter_server.transport import connection
    from meshflow.distribute.parameter_server.worker.running_closure import RunningClosure

    mine = kind if context.input_pipeline_id == slow else "none"
    product = tf.function(lambda x: tf.reduce_sum(x @ x))
    total = tf.function(lambda x: tf.reduce_sum(tf.sin(x)))
    sizes = itertools.count(1)

    def multiply():
        square, until = tf.ones([384, 384]), time.monotonic() + delay
        while time.monotonic() < until:
            product(square).numpy()

    def before(owner, name, what):
        plain = getattr(owner, name)

        def planted(*args, **kwargs):
            what()
            return plain(*args, **kwargs)

        setattr(owner, name, planted)

    if mine == "python":
        before(RunningClosure, "make_pushes", lambda: time.sleep(delay))
    if mine == "compute":
        before(RunningClosure, "make_pushes", multiply)
    if mine == "recompiling":
        before(RunningClosure, "make_pushes", lambda: total(tf.zeros([next(sizes)])))
    if mine == "communication":
        before(connection.RemoteCaller, "call", lambda: time.sleep(delay))

    def made():
        while True:
            if mine == "input":
                time.sleep(delay)
            yield [[1.0] * 8] * 32, [[1.0]] * 32

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
