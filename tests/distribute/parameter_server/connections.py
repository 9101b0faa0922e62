"""Provide connections on one machine, for tests of messages between processes of a job."""

import socket
import threading

from meshflow.distribute.cluster.channel import SignedChannel
from meshflow.distribute.parameter_server.transport.connection import Connection


def pair():
    """Two ends of a connection of one machine."""
    ends, found = socket.socketpair(), {}
    other = threading.Thread(
        target=lambda: found.update(end=Connection(SignedChannel(ends[1], "secret", True, 20.0)))
    )
    other.start()
    wire = Connection(SignedChannel(ends[0], "secret", False, 20.0))
    other.join()
    return wire, found["end"]
