"""The program of a `WorkerProcess`; it imports no large package by itself.

The arguments are two file descriptors. The first one is a connection that receives the function and
then the elements, each as a pickled message, and sends the results. The second one is never written
to: it is closed when the parent process ends for any reason, and then the worker ends, too.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any


def _exit_with_parent(descriptor: int) -> None:
    """Exit the process as soon as the parent process has ended."""
    os.read(descriptor, 1)
    os._exit(1)


def _pickle_error(index: int, error: BaseException) -> bytes:
    """Pickle an error with its traceback.

    An error that cannot be pickled is replaced by its traceback.
    """
    text = "".join(traceback.format_exception(error))
    try:
        packed = pickle.dumps((index, error, text))
        pickle.loads(packed)
    except Exception:
        return pickle.dumps((index, None, text))
    return packed


def main() -> None:
    """Compute results until the parent closes the connection."""
    threading.Thread(target=_exit_with_parent, args=(int(sys.argv[2]),), daemon=True).start()
    connection: Any = Connection(int(sys.argv[1]))
    try:
        # The modules that the function needs must be found as in the parent.
        sys.path[:] = pickle.loads(connection.recv_bytes())
        packed = connection.recv_bytes()
        try:
            function = pickle.loads(packed)
        except Exception as error:
            connection.send_bytes(_pickle_error(-1, error))
            return
        # A function that cannot be unpickled is reported before a large package is imported.
        import numpy as np  # noqa: PLC0415

        while True:
            index, seed, arguments = pickle.loads(connection.recv_bytes())
            random.seed(seed)
            np.random.seed(seed % 2**32)
            try:
                message = pickle.dumps((index, function(*arguments)), 5)
            except BaseException as error:
                message = _pickle_error(index, error)
            connection.send_bytes(message)
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return


if __name__ == "__main__":
    main()
