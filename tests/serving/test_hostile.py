"""Hostile requests to a server process: other clients are answered, and memory and time are limited."""

import asyncio
import gzip
import json
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

import hostile
import meshflow as tf
from meshflow.core.runtime import worker_process

pytest.importorskip("starlette", reason="needs the extra serving")
pytest.importorskip("uvicorn", reason="needs the extra serving")
grpc = pytest.importorskip("grpc", reason="needs the extra serving")

from meshflow.io.tensors import to_tensor_proto
from meshflow.serving import messages
from meshflow.serving.codec_pool import CodecPool
from meshflow.serving.limits import ReadSlots, check_host

# The names of small requests are those of large ones, which take seconds to make.
BODIES, MESSAGES = list(hostile.make_bodies(1000)), list(hostile.make_messages(1000))
# A blocked event loop delays other clients by much more, a busy machine by less.
MAX_SECONDS = 2.0
FOREVER = 10**15


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return hostile.save_models(tmp_path_factory.mktemp("hostile"))


def run_server(config, *options):
    server = hostile.Server(config, "--no-warm-up", *options)
    # The first requests compile programs and start processes.
    body = b'{"instances": [[1, 2]]}'
    statuses = [server.send("POST", "/v1/models/other:predict", body)[0]]
    while statuses[-1] != 200 or len(statuses) < 2:
        statuses.append(server.predict("numbers", [[0.5] * 9000])[0])
        if len(statuses) > 30:
            server.close()
            raise AssertionError(statuses)
    return server


@pytest.fixture(scope="module")
def servers():
    """The list of servers with the usual limits, the last of which may run."""
    started = []
    yield started
    for server in started:
        server.close()


@pytest.fixture
def server(config, servers):
    """A server with the usual limits, which one test stops."""
    status = servers[-1].process.poll() if servers else 0
    assert status in (None, 0), f"a request of an earlier test stopped the server: {status}"
    if status == 0:
        servers.append(run_server(config, "--grace", "100"))
    return servers[-1]


@pytest.fixture(scope="module")
def limited(config):
    """A server with small limits, which the last test stops."""
    options = ["--max-connections", "4", "--max-in-flight", "1", "--deadline", "2", "--grace", "5"]
    server = run_server(config, *options)
    yield server
    server.close()


@pytest.mark.parametrize("name", BODIES)
def test_bodies_do_not_delay_other_clients(name, server):
    body, headers, statuses = hostile.make_bodies(hostile.MEGABYTE)[name]
    with hostile.SecondClient(server) as client:
        status, content = server.send("POST", hostile.get_path(body), body, headers)
    assert status in statuses, content[:200]
    assert status == 200 or len(content) < 5000
    assert not client.errors and max(client.seconds) < MAX_SECONDS
    assert server.count_memory() < 2500


@pytest.mark.parametrize("name, size", [("empty lists", 6), ("integers", 2)])
def test_other_clients_are_answered_meanwhile(name, size, server):
    body, _, statuses = hostile.make_bodies(size * hostile.MEGABYTE)[name]
    # The server receives a short body at once.
    body = gzip.compress(body, 1)
    head = hostile.HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    with hostile.SecondClient(server, pause=0.001) as client, server.connect() as connection:
        connection.sendall(head + body)
        count = len(client.seconds)
        assert hostile.read_status(connection) in statuses
        # While the event loop parses, no client is answered.
        assert len(client.seconds) > count + 5
    assert not client.errors


@pytest.mark.parametrize("name", hostile.CONVERSATIONS)
def test_connections_do_not_delay_other_clients(name, server):
    talk, statuses = hostile.CONVERSATIONS[name]
    with hostile.SecondClient(server) as client:
        assert talk(server) in statuses
    assert not client.errors and max(client.seconds) < MAX_SECONDS


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_do_not_delay_other_clients(name, server):
    method, content, options, codes = hostile.make_messages(hostile.MEGABYTE)[name]
    with hostile.SecondClient(server, is_rpc=True) as client:
        assert server.call(method, content, **options) in codes
    assert not client.errors and max(client.seconds) < MAX_SECONDS
    assert server.count_memory() < 2500


@pytest.mark.parametrize("name", hostile.RPC_CONVERSATIONS)
def test_frames_do_not_delay_other_clients(name, server):
    with hostile.SecondClient(server, is_rpc=True) as client:
        hostile.RPC_CONVERSATIONS[name](server)
    assert not client.errors and max(client.seconds) < MAX_SECONDS
    assert server.count_memory() < 2500


@pytest.mark.parametrize(
    "method, path, status",
    [
        ("POST", "/v1/models/../../etc/passwd:predict", 400),
        ("POST", "/v1/models/..%2f..%2fetc%2fpasswd:predict", 400),
        ("POST", "/v1/models/..:predict", 404),
        ("POST", "/v1/models/%00:predict", 404),
        ("GET", "/v1/models/%2e%2e", 404),
        ("GET", "/v1/models/target/versions/-1", 400),
        ("GET", "/v1/models/target/versions/%D9%A1", 200),
        ("GET", "/v1/models/target/labels/..", 404),
        ("GET", "/../models.config", 404),
        ("GET", "/v1/models/" + "a" * 60_000, 404),
    ],
)
def test_names_are_no_paths(method, path, status, server):
    assert (
        server.send(method, path, b'{"inputs": [[1]]}' if method == "POST" else None)[0] == status
    )


@pytest.mark.parametrize(
    "headers, status",
    [
        ({}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Host": "10.1.2.3:8501"}, 200),
        ({"Host": "example.com"}, 403),
        ({"Host": "localhost.example.com"}, 403),
        ({"Host": "localhost@example.com"}, 403),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Origin": "http://example.com"}, 403),
        ({"Origin": "http://10.1.2.3"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[::1"}, 403),
    ],
)
def test_pages_of_other_servers_are_refused(headers, status, server):
    for path in ("/v1/models/target", "/healthz", "/metrics"):
        assert server.send("GET", path, None, headers)[0] == status


def test_names_of_a_server_may_be_allowed():
    for hosts, host, origin in ((["a.org"], "a.org:80", "http://a.org"), (["*"], "b.org", None)):
        check_host({"host": host} | ({"origin": origin} if origin else {}), hosts)
    with pytest.raises(tf.errors.PermissionDeniedError, match="--allow-host"):
        check_host({"host": "b.org", "origin": "http://b.org"}, ["*"])


def test_metrics_and_health(server):
    assert json.loads(server.send("GET", "/healthz")[1]) == {"status": "ok", "models": {}}
    status, text = server.send("GET", "/metrics")
    assert status == 200
    assert b'request_count{model_name="other",status="OK"}' in text
    assert b"meshflow_serving_bytes_in_flight 0\n" in text
    assert b'meshflow_serving_busy_seconds{model_name="target"} 0.000' in text


def test_calls_have_limits(server):
    with grpc.insecure_channel(server.rpc_address) as channel:

        def send(method, request, **options):
            call = channel.unary_unary(f"/tensorflow.serving.PredictionService/{method}")
            with pytest.raises(grpc.RpcError) as error:
                call(
                    request if isinstance(request, bytes) else request.SerializeToString(),
                    timeout=60,
                    **options,
                )
            return error.value.code().name, error.value.details()

        # A message of a few bytes that declares an array of 4 TB.
        request = messages.PredictRequest()
        request.model_spec.name, request.model_spec.signature_name = "target", "numbers"
        request.inputs["x"].ParseFromString(to_tensor_proto(np.float32(1)).SerializeToString())
        for _ in range(2):
            request.inputs["x"].tensor_shape.dim.add(size=10**6)
        with hostile.SecondClient(server) as client:
            code, message = send("Predict", request)
            assert code == "INVALID_ARGUMENT" and "needs more than" in message
            # Empty examples need two bytes each.
            many = messages.ClassificationRequest()
            many.model_spec.name, many.model_spec.signature_name = "target", "classify"
            for _ in range(600_000):
                many.input.example_list.examples.add()
            code, message = send("Classify", many)
            assert code == "INVALID_ARGUMENT" and "split it" in message
            code, message = send("Predict", b"\x1a\x02ab" * (1 << 18))
            assert code == "INVALID_ARGUMENT" and "besides the values" in message
            assert send("Predict", bytes(65 << 20))[0] == "RESOURCE_EXHAUSTED"
            metadata = [("key", "x" * 100_000)]
            assert send("Predict", request, metadata=metadata)[0] == "RESOURCE_EXHAUSTED"
        assert not client.errors and max(client.seconds) < MAX_SECONDS


def test_bytes_in_flight_and_connections_are_limited(limited):
    with limited.connect() as first, limited.connect() as second:
        for connection in (first, second):
            connection.sendall(hostile.HEAD + b"Content-Length: 999999\r\n\r\n" + b" " * 700_000)
        statuses = [hostile.read_status(c) for c in (first, second)]
        # The first exceeds its deadline, because its body is incomplete.
        assert sorted(statuses) == [503, 504]
    idle = [limited.connect() for _ in range(4)]
    time.sleep(0.2)
    with limited.connect() as rejected:
        assert hostile.read_status(rejected) == 503
    for connection in idle:
        connection.close()
    for _ in range(100):
        if limited.send("GET", "/healthz")[0] == 200:
            break
    text = limited.send("GET", "/metrics")[1]
    assert b'meshflow_serving_rejections{reason="connections"}' in text
    assert b"meshflow_serving_bytes_in_flight 0\n" in text


@pytest.mark.soak
def test_slow_connections_are_closed(server):
    body = hostile.make_bodies(20 * hostile.MEGABYTE)["zeros, large response"][0]
    head = hostile.HEAD + b"Content-Length: %d\r\n\r\n" % len(body)
    # An incomplete header, none at all, and a client that does not read its response.
    starts = [hostile.HEAD, b"", head + body]
    connections = [server.connect() for _ in starts]
    for connection, start in zip(connections, starts, strict=True):
        connection.sendall(start)
    for connection in connections[:2]:
        assert hostile.read_status(connection) == 0
    count = lambda text: int(text.split(b'rejections{reason="stalled"} ')[1].split()[0])
    while b'"stalled"' not in (text := server.send("GET", "/metrics")[1]):
        time.sleep(0.5)
    assert count(text) == 1 and b"meshflow_serving_bytes_in_flight 0\n" in text
    connections[2].close()


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads /proc")
def test_a_killed_process_fails_one_request(server):
    for pid in server.list_children():
        os.kill(pid, signal.SIGKILL)
    statuses = {server.predict("numbers", [[0.5] * 9000])[0] for _ in range(4)}
    assert statuses <= {200, 503} and server.predict("numbers", [[0.5] * 9000])[0] == 200


def test_a_computation_without_end_fails_at_the_deadline_and_the_server_stops(limited):
    with hostile.SecondClient(limited) as client:
        status, content = limited.predict("count", FOREVER)
        assert status == 504 and "not answered within 2 seconds" in content["error"]
        # The next request waits for the computation, which cannot be interrupted.
        assert limited.predict("count", 5)[0] == 504
        status, content = limited.send("GET", "/healthz")
        assert status == 503 and "has been running for" in json.loads(content)["models"]["target"]
    assert not client.errors and max(client.seconds) < MAX_SECONDS
    waiting = threading.Thread(target=lambda: limited.predict("count", 5))
    waiting.start()
    # The grace is 5 s.
    assert limited.terminate(60) < 30
    with pytest.raises(OSError):
        waiting.join()
        limited.connect()


def test_a_server_completes_its_requests_and_stops(server):
    body = b'{"signature_name": "numbers", "inputs": [[1, 2]]}'
    with server.connect(), server.connect() as busy:
        busy.sendall(hostile.HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body[:9])
        # The server has received the head when it answers a later request.
        assert server.send("GET", "/healthz")[0] == 200
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(OSError):
            while True:
                server.connect().close()
        busy.sendall(body[9:])
        assert hostile.read_status(busy) == 200
        start = time.monotonic()
        server.process.wait(60)
        assert time.monotonic() - start < 30


def test_a_process_has_a_deadline_and_a_limit_of_memory():
    async def run():
        pool = CodecPool(1, 60.0, 1 << 20)
        try:
            with pytest.raises(ZeroDivisionError):
                await pool.run(False, divmod, 1, 0)
            with pytest.raises(MemoryError):
                await pool.run(False, bytes, 1 << 33)
            # The process is used again after an error.
            pool._max_seconds = 0.2
            assert await pool.run(False, divmod, 7, 2) == (3, 1) and pool.failures == 0
            with pytest.raises(tf.errors.DeadlineExceededError):
                await pool.run(False, time.sleep, 600)
            pool._max_seconds = 60.0
            with pytest.raises(tf.errors.UnavailableError, match="exited with status 3"):
                await pool.run(False, os._exit, 3)
            assert pool.failures == 2
        finally:
            pool.close()

    asyncio.run(run())


def test_slow_requests_yield_their_slots():
    async def run():
        slots, forever = ReadSlots(3, 2, 0.01), asyncio.Event()
        started = []

        async def read(client, event=forever):
            async with slots.hold(client):
                started.append(client)
                await event.wait()

        slow = [asyncio.create_task(read(client)) for client in "aaabb"]
        await asyncio.sleep(0)
        # A client has two slots, and there are three.
        assert started == ["a", "a", "b"]
        fast = asyncio.Event()
        fast.set()
        await read("c", fast)
        with pytest.raises(tf.errors.UnavailableError, match="while others waited"):
            await slow[0]
        forever.set()
        await asyncio.gather(*slow, return_exceptions=True)
        assert not slots._clients and not slots._num_uses and not slots._held
        assert slots._slots._value == 3

    asyncio.run(run())


def test_process_that_exits_at_startup_fails_one_request(monkeypatch):
    async def run():
        pool = CodecPool(1, 60.0, 1 << 20)
        try:
            with monkeypatch.context() as broken:
                # The process ends before it has received a message that exceeds all buffers.
                broken.setattr(worker_process, "_PROGRAM", "-V")
                broken.setattr(sys, "path", [*sys.path, "x" * (1 << 23)])
                with pytest.raises(tf.errors.UnavailableError, match="exited with status 0"):
                    await pool.run(False, divmod, 7, 2)
            assert await pool.run(False, divmod, 7, 2) == (3, 1)
        finally:
            pool.close()

    asyncio.run(run())
