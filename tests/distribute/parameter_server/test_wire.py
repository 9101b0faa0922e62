"""Test calls between processes of a job, and the errors at their callers."""

import threading

import pytest

from distribute.parameter_server.connections import pair
from meshflow.distribute.parameter_server.transport.connection import (
    ConnectionLostError,
    RemoteCaller,
    answer_calls,
)


class NotThere(Exception):
    """Return pickles that another process cannot load."""


def refuse():
    raise NotThere("no such class here")


class Unknown:
    """Define objects that can be pickled, but not unpickled."""

    def __reduce__(self):
        return refuse, ()


def test_caller_receives_unpickling_errors():
    here, there = pair()
    answering = threading.Thread(target=answer_calls, args=(there, {"twice": lambda x: 2 * x}))
    answering.start()
    caller = RemoteCaller(here)
    with pytest.raises(NotThere, match="no such class here"):
        caller.call("twice", Unknown())
    # The connection is as before, and ends with who calls.
    assert caller.call("twice", 4) == 8
    here.close()
    answering.join(20)
    assert not answering.is_alive()


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_interrupted_call_does_not_affect_the_next_call(error, monkeypatch):
    here, there = pair()
    answering = threading.Thread(target=answer_calls, args=(there, {"twice": lambda x: 2 * x}))
    answering.start()
    caller = RemoteCaller(here)

    def interrupt():
        raise error

    with monkeypatch.context() as patched, pytest.raises(error):
        patched.setattr(here, "receive", interrupt)
        caller.call("twice", 4)
    with pytest.raises(ConnectionLostError):
        caller.call("twice", 5)
    answering.join(20)
    assert not answering.is_alive()
