"""What a worker process of `map_with_workers` runs: a file of its own, which imports nothing big.

The arguments are two file descriptors. On the first come the function and then elements, each as
a pickled message, and the results go back. The second is never written to: its end is the
parent's end, however that came about, and then this process ends as well.
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


def _follow(descriptor: int) -> None:
    """Ends this process with its parent."""
    os.read(descriptor, 1)
    os._exit(1)


def _packed(number: int, error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(error))
    try:
        packed = pickle.dumps((number, error, text))
        pickle.loads(packed)
    except Exception:
        # An exception that cannot be sent is told in words.
        return pickle.dumps((number, None, text))
    return packed


def main() -> None:
    """Computes until the parent closes the connection."""
    threading.Thread(target=_follow, args=(int(sys.argv[2]),), daemon=True).start()
    connection: Any = Connection(int(sys.argv[1]))
    try:
        # Modules of the function are looked for where the parent finds them.
        sys.path[:] = pickle.loads(connection.recv_bytes())
        packed = connection.recv_bytes()
        try:
            function = pickle.loads(packed)
        except Exception as error:
            connection.send_bytes(_packed(-1, error))
            return
        # The parent is told of a function that cannot be read before anything large is imported.
        import numpy as np  # noqa: PLC0415

        while True:
            number, seed, arguments = pickle.loads(connection.recv_bytes())
            random.seed(seed)
            np.random.seed(seed % 2**32)
            try:
                message = pickle.dumps((number, function(*arguments)), 5)
            except BaseException as error:
                message = _packed(number, error)
            connection.send_bytes(message)
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return


if __name__ == "__main__":
    main()
