"""Memory that two processes share: arrays arrive whole, memory is used again, nothing is left."""

import gc
import os
import socket
import threading

import numpy as np
import pytest

from meshflow.core.runtime import transfers
from meshflow.distribute.cluster.channel import Channel
from meshflow.distribute.parameter_server import segments
from meshflow.distribute.parameter_server.wire import Lost, Wire

pytestmark = pytest.mark.skipif(not segments.POSSIBLE, reason="needs files without names")

LARGE = np.arange(100_000, dtype=np.float32)


def pair():
    """Two ends of a connection of one machine."""
    ends, found = socket.socketpair(), {}
    other = threading.Thread(
        target=lambda: found.update(end=Wire(Channel(ends[1], "secret", True, 20.0)))
    )
    other.start()
    wire = Wire(Channel(ends[0], "secret", False, 20.0))
    other.join()
    return wire, found["end"]


@pytest.fixture
def wires():
    made = pair()
    yield made
    for wire in made:
        wire.close()


def segments_of(wire):
    return [s for found in wire._outgoing._by_size.values() for s in found]


def test_arrays_arrive_and_their_memory_is_used_again(wires):
    a, b = wires
    for i in range(5):
        a.send({"large": LARGE + i, "small": np.float32(i), "readonly": np.broadcast_to(1.0, (3,))})
        seen = b.receive()
        np.testing.assert_array_equal(seen["large"], LARGE + i)
        assert seen["small"] == i
        seen = None
    assert len(segments_of(a)) == 1


def test_what_is_still_in_use_is_not_written_over(wires):
    a, b = wires
    kept = []
    for i in range(3):
        a.send(LARGE * i)
        kept.append(b.receive())
    for i, seen in enumerate(kept):
        np.testing.assert_array_equal(seen, LARGE * i)
    assert len(segments_of(a)) == 3


def test_devices_take_what_arrives_without_a_copy(wires):
    a, b = wires
    frozen = LARGE.copy()
    frozen.flags.writeable = False  # as those of device arrays
    for sent in (LARGE, frozen):
        a.send(sent)
        seen = b.receive()
        array = transfers.to_device(seen)
        assert array.unsafe_buffer_pointer() == seen.ctypes.data
        # The device array alone keeps the memory.
        seen = None
        gc.collect()
        assert any(s.is_used for s in segments_of(a))
        array = None
        transfers.let_go()
        assert not any(s.is_used for s in segments_of(a))


def test_lent_memory_is_sent_without_a_copy(wires):
    a, b = wires
    lent = a.lend((200, 300), np.float32)
    lent[...] = 7
    address = lent.ctypes.data
    a.send(lent)
    seen = b.receive()
    assert [s.address for s in segments_of(a) if s.is_used] == [address]
    np.testing.assert_array_equal(seen, np.full((200, 300), 7, np.float32))


def test_segments_that_nothing_needs_any_more_are_given_up(wires):
    a, b = wires
    a.send(LARGE)
    assert b.receive().nbytes == LARGE.nbytes
    for _ in range(2 * segments._UNUSED):
        a.send(1)
        b.receive()
    assert segments_of(a) == []
    assert b._incoming._mappings == {}


def test_without_room_arrays_go_through_the_connection(wires, monkeypatch):
    monkeypatch.setattr(segments, "_MOST_BYTES", 0)
    a, b = wires
    seen = []
    reader = threading.Thread(target=lambda: seen.append(b.receive()))
    reader.start()
    a.send(LARGE)
    reader.join(20)
    np.testing.assert_array_equal(seen[0], LARGE)
    assert segments_of(a) == []


def test_many_new_segments_in_one_message(wires):
    a, b = wires
    arrays = [np.full(20_000, i, np.float32) for i in range(segments._MOST_NEW + 20)]
    reader, seen = None, []
    reader = threading.Thread(target=lambda: seen.extend(b.receive()))
    reader.start()
    a.send(arrays)
    reader.join(20)
    for i, array in enumerate(seen):
        assert array[0] == array[-1] == i
    assert len(seen) == len(arrays)


def test_a_forked_process_frees_nothing(wires):
    a, b = wires
    a.send(LARGE)
    seen = b.receive()
    over = seen.base
    while not hasattr(over, "over"):
        over = over.base
    read, write = os.pipe()
    child = os.fork()
    if not child:
        over.over()
        os.write(write, b"done")
        os._exit(0)
    assert os.read(read, 4) == b"done"
    os.waitpid(child, 0)
    assert [s.is_used for s in segments_of(a)] == [True]


def test_memory_that_may_shrink_is_refused(wires):
    _, b = wires
    shrinks = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    os.ftruncate(shrinks, 1 << 20)
    with pytest.raises(ValueError, match="may shrink"):
        b._incoming.take(1, 100, shrinks)
    os.close(shrinks)
    # A number that was never given out is no reason to wait.
    with pytest.raises(Lost):
        b._array(100, 77, iter(()))
