"""The meeting point beside strangers: they are answered and forgotten, and the workers still meet."""

import json
import logging
import socket
import threading

import numpy as np
import pytest

import meshflow as tf
from distribute.cluster import strangers
from meshflow.distribute.cluster import addresses, rendezvous
from meshflow.distribute.cluster.channel import SignedChannel, UntrustedPeerError, create_secret
from meshflow.distribute.cluster.rendezvous import Rendezvous, join_rendezvous
from meshflow.distribute.multi_worker import host_collectives


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(rendezvous, "_HELLO_SECONDS", 1.0)


@pytest.fixture
def point():
    made = Rendezvous("127.0.0.1", 0, ["worker:0", "worker:1"], ["a:1", "b:1"], "known")
    yield made
    made.close()


def joining(point, number, secret="known", timeout=20):
    """Return messages to a worker as soon as they arrive."""
    told = []

    def work():
        hello = {"worker": number, "workers": 2, "addresses": None}
        try:
            told.append(
                join_rendezvous(f"127.0.0.1:{point.port}", hello, secret, "w", "p", timeout)[0]
            )
        except Exception as error:
            told.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, told


def assert_meet(point):
    """Assert that both workers connect and receive the address of the service."""
    workers = [joining(point, number) for number in (1, 0)]
    point.wait_for_workers(20)
    point.send_service_address("there:1")
    for thread, told in workers:
        thread.join(10)
        assert told == ["there:1"]


@pytest.mark.parametrize("kind", strangers.ATTACKS)
def test_strangers_are_answered_and_forgotten(point, kind, caplog):
    stranger = strangers.attack("127.0.0.1", point.port, kind)
    answered = strangers.answer(stranger, 5)
    assert answered is not None  # closed, even if nothing was sent
    stranger.close()
    assert_meet(point)
    refused = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert len(refused) == 1 and "127.0.0.1 port" in refused[0]


def test_silent_connections_do_not_block_workers(point, monkeypatch):
    monkeypatch.setattr(rendezvous, "_HELLO_SECONDS", 60.0)
    silent = [strangers.attack("127.0.0.1", point.port, "nothing") for _ in range(20)]
    assert_meet(point)
    point.stop_listening()
    for one in silent:
        assert strangers.answer(one, 5) is not None


def test_a_greeting_cannot_be_sent_again(point):
    """Record a worker's messages between the worker and the rendezvous service."""
    with socket.create_server(("127.0.0.1", 0)) as between:
        said = []

        def carry():
            here, _ = between.accept()
            there = socket.create_connection(("127.0.0.1", point.port))
            there.settimeout(5)
            here.sendall(there.recv(1 << 16))
            while b"".join(said).count(b"\n") < 2:
                said.append(here.recv(1 << 16))
            here.close()
            there.close()

        carrier = threading.Thread(target=carry)
        carrier.start()
        with socket.create_connection(between.getsockname()) as worker:
            SignedChannel(worker, "known", False, 5).send(strangers.hello(1))
            carrier.join(10)
    again = socket.create_connection(("127.0.0.1", point.port), timeout=5)
    again.sendall(b"".join(said))
    assert b"refused" in strangers.answer(again)
    assert not point.connections


def test_messages_are_numbered_and_directed():
    ends = socket.socketpair()
    made = []
    other = threading.Thread(target=lambda: made.append(SignedChannel(ends[1], "s", True, 5)))
    other.start()
    a = SignedChannel(ends[0], "s", False, 5)
    other.join()
    b = made[0]
    a.send({"steps": 1})
    line = ends[1].recv(1 << 16)
    ends[0].sendall(line)
    assert b.receive() == {"steps": 1}
    ends[0].sendall(line)
    with pytest.raises(UntrustedPeerError):
        b.receive()
    ends[1].sendall(line)
    with pytest.raises(UntrustedPeerError):
        a.receive()
    a.close()
    b.close()


def test_wrong_secrets_are_rejected(point):
    thread, told = joining(point, 1, "other")
    thread.join(10)
    assert isinstance(told[0], tf.errors.UnavailableError) and "MESHFLOW_SECRET" in str(told[0])
    assert len(create_secret()) == 64 and create_secret() != create_secret()


def test_departed_worker_frees_its_place(point):
    first = socket.create_connection(("127.0.0.1", point.port))
    SignedChannel(first, "known", False, 5).send(strangers.hello(1))
    strangers.wait_for(lambda: 1 in point.connections)
    second, refusal = joining(point, 1)
    second.join(10)
    assert "two processes say that they are worker:1" in str(refusal[0])
    first.close()
    strangers.wait_for(lambda: point.connections[1].is_disconnected())
    assert_meet(point)


def test_refused_workers_are_reported_when_workers_are_missing(point):
    for _ in range(30):
        strangers.answer(strangers.attack("127.0.0.1", point.port, "another key"))
    with pytest.raises(tf.errors.DeadlineExceededError, match="Refused meanwhile") as error:
        point.wait_for_workers(0.1)
    assert str(error.value).count("does not speak Meshflow's protocol") == 20


def test_listening_address(monkeypatch):
    monkeypatch.delenv("JAX_COORDINATOR_BIND_ADDRESS", raising=False)
    for host in ("localhost", "127.0.0.1"):
        assert addresses.choose_listening_host(host, ["localhost"]) == "127.0.0.1"
        assert addresses.choose_listening_host(host, ["10.1.2.3"]) == "127.0.0.1"
    # A name that leads to this machine itself only is not where others find it.
    monkeypatch.setattr(addresses, "_resolve_host", lambda host: ["127.0.1.1"])
    monkeypatch.setattr(
        addresses, "find_route_address", lambda host: "127.0.0.7" if host == "b" else None
    )
    monkeypatch.setattr(addresses, "is_loopback", lambda host: host == "127.0.1.1")
    assert addresses.choose_listening_host("a", ["a", "b"]) == "127.0.0.7"
    monkeypatch.setattr(addresses, "_resolve_host", lambda host: ["192.0.2.1"])
    assert addresses.choose_listening_host("a", ["b"]) == ""
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", "127.0.0.9:1")
    assert addresses.choose_listening_host("a", ["b"]) == "127.0.0.9"
    assert addresses.format_address("::1", 5) == "[::1]:5"
    assert addresses.parse_address("[::1]:5") == ("::1", 5)


VALUES = [
    None,
    True,
    (3, 7),
    [[((4, 2), "float32"), ()], []],
    {"a": 1.5, 2: b"\x00\xff"},
    float("inf"),
    np.float32(2.5),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_exchanged_values_round_trip(value):
    found = host_collectives.unpack_value(host_collectives.pack_value(value))
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3).T,
        np.zeros((0, 3), np.int8),
        np.array(7),
        np.array([[b"a", b"\x00bc"], ["d", 5]], object),
        tf.constant([1.5, -2.0], tf.bfloat16).numpy(),
        np.array([1 + 2j], np.complex64),
    ],
    ids=lambda a: f"{a.dtype}{a.shape}",
)
def test_exchanged_arrays_round_trip(array):
    found = host_collectives.unpack_value(host_collectives.pack_value([array]))[0]
    assert found.dtype == array.dtype and found.shape == array.shape
    assert found.tolist() == array.tolist()


def test_objects_other_than_data_are_refused():
    with pytest.raises(TypeError, match="do not exchange values of type function"):
        host_collectives.pack_value([json.dumps])
