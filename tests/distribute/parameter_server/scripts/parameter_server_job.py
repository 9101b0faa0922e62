"""Train on parameter servers in processes, from the last checkpoint, and print progress."""

import sys
import time

import meshflow as tf


def main(folder, closures):
    strategy = tf.distribute.ParameterServerStrategy(engine="processes", workers=1)
    with strategy.scope():
        counter = tf.Variable(0)
        w = tf.Variable([0.0, 0.0])
        optimizer = tf.keras.optimizers.Adam(0.1)
    optimizer.build([w])
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(counter=counter, w=w, optimizer=optimizer), folder, max_to_keep=2
    )
    manager.restore_or_initialize()

    @tf.function
    def step():
        counter.assign_add(1)
        optimizer.apply_gradients([(tf.constant([1.0, 2.0]), w)])

    pids = [strategy.cluster.get_pid(*key) for key in (("worker", 0), ("ps", 0))]
    print("pids", *pids, flush=True)
    while int(counter) < closures:
        for _ in range(10):
            coordinator.schedule(step)
        coordinator.join()
        manager.save()
        print("at", int(counter), int(optimizer.iterations), flush=True)
        time.sleep(0.05)
    print("done", int(counter), int(optimizer.iterations), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
