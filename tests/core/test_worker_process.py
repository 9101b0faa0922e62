"""Worker processes of data pipelines and of the server."""

import os
import pickle

from meshflow.core.runtime.worker_process import WorkerProcess


def test_a_process_may_be_stopped_twice():
    worker = WorkerProcess(pickle.dumps(divmod), "a test")
    worker.stop()
    read_end, write_end = os.pipe()
    worker.stop()
    # The second close must not close a descriptor that belongs to another file by now.
    os.close(write_end)
    os.close(read_end)
