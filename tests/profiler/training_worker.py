"""Run a worker of MultiWorkerMirroredStrategy that trains until its standard input ends, slowed on
purpose.

Arguments: the port of its profiler's server, the type of delay ('python', 'input', 'compute',
'recompiling' or 'none'), and the delay in milliseconds. Delays of communication are injected from
outside.
"""

import os
import sys
import threading
import time

import meshflow as tf

port, kind, delay = int(sys.argv[1]), sys.argv[2], float(sys.argv[3]) / 1000
strategy = tf.distribute.MultiWorkerMirroredStrategy()
tf.profiler.experimental.server.start(port)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
square = tf.ones([384, 384])
product = tf.function(lambda x: tf.reduce_sum(x @ x))
total = tf.function(lambda x: tf.reduce_sum(tf.sin(x)))


def batches():
    while True:
        if kind == "input":
            time.sleep(delay)
        yield [[1.0] * 16] * 8, [[1.0]] * 8


class Slow(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if kind == "python":
            time.sleep(delay)
        if kind == "compute":
            until = time.monotonic() + delay
            while time.monotonic() < until:
                product(square).numpy()
        if kind == "recompiling":
            total(tf.zeros([batch + 1]))
        if batch == 1:
            print("ready", flush=True)


product(square)
spec = (tf.TensorSpec([8, 16]), tf.TensorSpec([8, 1]))
data = tf.data.Dataset.from_generator(batches, output_signature=spec)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(32, name="wide"), tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")
model.fit(data, steps_per_epoch=1_000_000, verbose=0, callbacks=[Slow()])
