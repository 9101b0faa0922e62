"""Test memory shared by two processes: arrays arrive completely, memory is reused, and no segment
remains."""

import functools
import itertools
import os
import threading
import types

import numpy as np
import pytest

import meshflow as tf
from distribute.parameter_server.connections import pair
from meshflow.core.runtime import transfers
from meshflow.distribute.parameter_server.server.remote_server import ServerService
from meshflow.distribute.parameter_server.transport import output_buffers, shared_memory
from meshflow.distribute.parameter_server.transport.connection import ConnectionLostError
from meshflow.distribute.parameter_server.transport.memory_pools import ArrayPool
from meshflow.distribute.parameter_server.transport.messages import (
    OptimizerStep,
    PullRequest,
    Push,
    VariableRows,
)
from meshflow.distribute.parameter_server.worker.worker import _replace_rows
from meshflow.environment.garbage_collection import collect_garbage
from meshflow.kernels import array_updates, library

pytestmark = pytest.mark.skipif(not shared_memory.IS_SUPPORTED, reason="needs files without names")

LARGE = np.arange(100_000, dtype=np.float32)


@pytest.fixture
def wires():
    made = pair()
    yield made
    for wire in made:
        wire.close()


def segments_of(wire):
    return [s for found in wire._outgoing._by_size.values() for s in found]


def test_arrays_arrive_and_their_memory_is_reused(wires):
    a, b = wires
    for i in range(5):
        a.send({"large": LARGE + i, "small": np.float32(i), "readonly": np.broadcast_to(1.0, (3,))})
        seen = b.receive()
        np.testing.assert_array_equal(seen["large"], LARGE + i)
        assert seen["small"] == i
        seen = None
    assert len(segments_of(a)) == 1


def test_memory_in_use_is_not_overwritten(wires):
    a, b = wires
    kept = []
    for i in range(3):
        a.send(LARGE * i)
        kept.append(b.receive())
    for i, seen in enumerate(kept):
        np.testing.assert_array_equal(seen, LARGE * i)
    assert len(segments_of(a)) == 3


def test_received_arrays_are_put_on_devices_without_a_copy(wires):
    a, b = wires
    frozen = LARGE.copy()
    frozen.flags.writeable = False  # as those of device arrays
    for sent in (LARGE, frozen):
        a.send(sent)
        seen = b.receive()
        array = transfers.to_device(seen)
        assert array.unsafe_buffer_pointer() == seen.ctypes.data
        # Only the device array refers to the memory.
        seen = None
        collect_garbage()
        assert any(s.is_used for s in segments_of(a))
        array = None
        transfers.release_deleted_arrays()
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


@pytest.fixture
def kernels():
    found = library.load()
    if not output_buffers.is_supported():
        pytest.skip("needs the compiled kernels")
    return found


def place_array(wire, value):
    with wire.offer_output_memory([LARGE.nbytes]):
        return transfers.transfer(LARGE + np.float32(value))


def test_device_results_are_sent_without_a_copy(wires, kernels):
    a, b = wires
    made = place_array(a, 1)
    assert a.can_share(made)
    seen = []
    for _ in range(2):
        a.send(made)
        seen.append(b.receive())
    # The second array has a separate segment: otherwise, releasing the first would free it for
    # both.
    first, second = segments_of(a)
    assert first.address == made.unsafe_buffer_pointer()
    assert first.is_used and second.is_used and not a.can_share(made) and not a.is_free(made)
    for array in seen:
        np.testing.assert_array_equal(array, LARGE + 1)


def test_memory_used_by_either_side_is_not_overwritten(wires, kernels):
    a, b = wires
    made = place_array(a, 1)
    a.send(made)
    seen = b.receive()
    (segment,) = segments_of(a)
    del made
    assert not kernels.holds_memory(segment.address) and not segment.is_free
    others = [place_array(a, value) for value in (2, 3)]
    np.testing.assert_array_equal(seen, LARGE + 1)
    del seen
    assert segment.is_free
    again = place_array(a, 4)
    assert again.unsafe_buffer_pointer() == segment.address and len(segments_of(a)) == 3
    for value, array in zip((2, 3, 4), (*others, again), strict=True):
        np.testing.assert_array_equal(array, LARGE + np.float32(value))


def test_values_of_a_worker_are_unchanged_by_requests_of_others(kernels, compile_tier):
    shape, service = (1000, 300), ServerService(0, None)
    held = functools.partial(service._server.resolve, 1)
    ends = [pair() for _ in range(2)]
    first, second = (service.methods(wire) for wire, _ in ends)
    first["create"](1, np.zeros(shape, np.float32), "v", None)
    rule = tf.keras.optimizers.SGD(1.0)
    rule.build([held()])
    service._server.add_optimizer(2, rule)
    numbers = itertools.count()

    def asked(methods, end, wish, **writes):
        push = Push(next(numbers), **writes) if writes else None
        end[0].send(methods["exchange"](push, wish, 0))
        return end[1].receive().values[1]

    ones, rows = (
        np.ones(shape, np.float32),
        VariableRows(np.full((2, 300), 5.0, np.float32), np.arange(2)),
    )
    by_rows = OptimizerStep(2, (1,), (rows,))
    # The first ones of their kind are compiled, and a value may be created by a thread without a
    # segment.
    for again in range(20):
        first["exchange"](Push(next(numbers), steps=[by_rows]), PullRequest(), 0)
        seen = asked(first, ends[0], PullRequest(known=(1,)), sets={1: ones})
        if again and ends[0][0].is_shared(held()._value):
            break
    assert ends[0][0]._find_segment(held()._value).is_used
    # It asks for the changes since then too.
    asked(second, ends[1], PullRequest(unknown=(1,)))
    asked(first, ends[0], PullRequest(unknown=(1,)))
    # The worker's results belong to it.
    own = {1: transfers.to_device(seen)}
    _replace_rows(own, 1, VariableRows(rows.values, rows.indices))
    np.testing.assert_array_equal(np.asarray(own[1])[:3, 0], [5, 5, 1])
    np.testing.assert_array_equal(held().numpy(), ones)
    first["exchange"](Push(next(numbers), steps=[by_rows]), PullRequest(), 0)
    np.testing.assert_array_equal(held().numpy()[:3, 0], [-4, -4, 1])
    np.testing.assert_array_equal(seen.view(np.float32).reshape(shape), ones)


def test_dense_updates_are_written_into_shared_memory(kernels, monkeypatch):
    monkeypatch.setattr(array_updates, "MIN_BYTES", 1 << 20)
    shape, service = (1000, 300), ServerService(0, None)
    held = functools.partial(service._server.resolve, 1)
    near, far = pair()
    methods = service.methods(near)
    methods["create"](1, np.zeros(shape, np.float32), "v", None)
    rule = tf.keras.optimizers.SGD(0.5)
    rule.build([held()])
    service._server.add_optimizer(2, rule)
    gradient = np.arange(300_000, dtype=np.float32).reshape(shape)
    seen = []
    for number in range(3):
        push = Push(number, steps=[OptimizerStep(2, (1,), (gradient,))])
        near.send(methods["exchange"](push, PullRequest(known=(1,)), 0))
        seen.append(far.receive().values[1])
        assert near._find_segment(held()._value).is_used
    (program,) = service._server._programs.values()
    captured = [c._value for c in program.traced.captures]
    assert library.RENEW in program.lower([gradient], captured).as_text()
    # Each still has the value that was sent.
    for number, value in enumerate(seen, 1):
        np.testing.assert_array_equal(value, -0.5 * number * gradient)


def test_other_sizes_and_other_threads_get_other_memory(wires, kernels):
    a, _ = wires
    made = []
    with a.offer_output_memory([LARGE.nbytes]):
        made.append(transfers.transfer(np.concatenate([LARGE, LARGE])))
        other = threading.Thread(target=lambda: made.append(transfers.transfer(LARGE)))
        other.start()
        other.join()
    made.append(transfers.transfer(LARGE))
    assert not any(a.can_share(array) for array in made)
    assert all(segment.is_free for segment in segments_of(a))


def test_arrays_outlive_their_connection(kernels):
    a, b = pair()
    made = place_array(a, 1)
    address = made.unsafe_buffer_pointer()
    for wire in (a, b):
        wire.close()
    del a, b, wire
    collect_garbage()
    np.testing.assert_array_equal(made, LARGE + 1)
    assert address in output_buffers._retained
    del made
    place_array(pair()[0], 1)
    collect_garbage()
    assert address not in output_buffers._retained


def test_free_segments_of_a_lost_connection_are_not_reused(wires, kernels):
    server, spares = types.SimpleNamespace(connection=wires[0]), ArrayPool()
    about = server, LARGE.shape, LARGE.dtype
    first = spares.get(*about)
    address = first.unsafe_buffer_pointer()
    spares.put(server, first)
    del first
    again = spares.get(*about)
    assert again.unsafe_buffer_pointer() == address
    # The server is killed while it reads this value, and restarts.
    lost, others = server.connection, pair()
    server.connection = others[0]
    spares.put(server, again)
    del again
    assert others[0].can_share(spares.get(*about)) and all(s.is_free for s in segments_of(lost))
    # Arrays outside of shared memory survive any connection.
    small = transfers.transfer(np.zeros(3, np.float32))
    spares.put(server, small)
    assert spares.get(server, (3,), np.dtype(np.float32)) is small
    for wire in others:
        wire.close()


def test_unused_segments_are_released(wires):
    a, b = wires
    a.send(LARGE)
    assert b.receive().nbytes == LARGE.nbytes
    for _ in range(2 * shared_memory._MAX_IDLE_MESSAGES):
        a.send(1)
        b.receive()
    assert segments_of(a) == []
    assert b._incoming._mappings == {}


def test_arrays_are_sent_by_the_connection_if_shared_memory_is_full(wires, monkeypatch):
    monkeypatch.setattr(shared_memory, "_MAX_TOTAL_BYTES", 0)
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
    arrays = [np.full(20_000, i, np.float32) for i in range(shared_memory._MAX_NEW_SEGMENTS + 20)]
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
    while not hasattr(over, "on_release"):
        over = over.base
    read, write = os.pipe()
    child = os.fork()
    if not child:
        over.on_release()
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
        b._incoming.map_array(1, 100, shrinks)
    os.close(shrinks)
    # An unissued number is no reason to wait.
    with pytest.raises(ConnectionLostError):
        b._receive_array(100, 77, iter(()))
