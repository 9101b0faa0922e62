"""A server process with two models, and requests that try to block it."""

import contextlib
import functools
import gzip
import http.client
import io
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import grpc

MEGABYTE = 1 << 20
PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
PREDICT, CLASSIFY = "/v1/models/target:predict", "/v1/models/target:classify"


def save_models(folder):
    """Save the model `target` of hostile requests, and `other`; return their configuration file."""
    import meshflow as tf

    class Target(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, None], name="x")])
        def numbers(self, x):
            return {"y": 2.0 * x}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
        def text(self, text):
            return {"y": tf.strings.regex_full_match(text, "(a+)+$")}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="inputs")])
        def classify(self, inputs):
            features = {"x": tf.io.FixedLenFeature([2], tf.float32, [0.0, 0.0])}
            return {"scores": tf.io.parse_example(inputs, features)["x"]}

        @tf.function(input_signature=[tf.TensorSpec([], tf.int64, name="steps")])
        def count(self, steps):
            start = [tf.zeros_like(steps)]
            return {"y": tf.while_loop(lambda i: i < steps, lambda i: [i + 1], start)[0]}

    target = Target()
    functions = {name: getattr(target, name) for name in ("numbers", "text", "classify", "count")}
    tf.saved_model.save(target, str(folder / "target" / "1"), functions)
    tf.saved_model.save(target, str(folder / "other" / "1"), {"serving_default": target.numbers})
    config = folder / "models.config"
    entries = (f"config {{ name: '{n}' base_path: '{folder / n}' }}" for n in ("target", "other"))
    config.write_text(f"model_config_list {{ {' '.join(entries)} }}")
    return config


class Server:
    """A process of `meshflow serve` with the options, until it is closed.

    Attributes:
      address: Host and port of HTTP.
      rpc_address: Host and port of gRPC.
    """

    def __init__(self, config, *options):
        command = [sys.executable, "-m", "meshflow", "serve", "--model-config-file", str(config)]
        self.process = subprocess.Popen(
            [*command, "--port", "0", "--grpc-port", "0", *options], stdout=subprocess.PIPE,
            text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )  # fmt: skip
        rpc, rest = self.process.stdout.readline(), self.process.stdout.readline()
        assert "by gRPC" in rpc and "http://" in rest, (rpc, rest)
        self.rpc_address = rpc.split(" at ")[1].strip()
        self.address = rest.split("http://")[1].split("/")[0]

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def connect(self):
        """Return a connected socket."""
        host, port = self.address.split(":")
        return socket.create_connection((host, int(port)), timeout=60)

    def send(self, method, path, body=None, headers=()):
        """Return the status and the content of a response."""
        connection = http.client.HTTPConnection(self.address, timeout=120)
        with contextlib.closing(connection):
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            return response.status, response.read()

    def connect_rpc(self):
        """Return a connected socket of gRPC."""
        host, port = self.rpc_address.split(":")
        return socket.create_connection((host, int(port)), timeout=60)

    def open_channel(self):
        """Return a gRPC channel with a separate connection."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        return grpc.insecure_channel(self.rpc_address, options)

    def call(self, method, content, **options):
        """Return the name of the code of a serialized gRPC request."""
        with self.open_channel() as channel:
            call = channel.unary_unary(f"/{PREDICTION_SERVICE}/{method}")
            try:
                call(content, timeout=120, **options)
            except grpc.RpcError as error:
                return error.code().name
            return "OK"

    def predict(self, signature, values):
        """Return the status and the JSON of a prediction of the target."""
        body = json.dumps({"signature_name": signature, "inputs": values})
        status, content = self.send("POST", PREDICT, body)
        return status, json.loads(content)

    def count_memory(self):
        """Return the resident memory of the server and its processes, in MB."""
        pages = 0
        for pid in [self.process.pid, *self.list_children()]:
            with contextlib.suppress(OSError), open(f"/proc/{pid}/statm") as file:
                pages += int(file.read().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / MEGABYTE

    def list_children(self):
        """Return the ids of the processes that the server started."""
        pids = []
        for file in pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                pids += map(int, file.read_text().split())
        return pids

    def terminate(self, seconds):
        """Send SIGTERM, and return the seconds until the process has ended."""
        start = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(seconds)
        return time.monotonic() - start


class SecondClient:
    """A client that sends short requests to the other model in a `with` block.

    Attributes:
      seconds: Durations of its requests.
      errors: Requests that were not answered with status 200.
    """

    def __init__(self, server, pause=0.02, is_rpc=False):
        self._server, self._pause = server, pause
        self._open = self._open_rpc if is_rpc else self._open_http
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.seconds, self.errors = [], []

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    @contextlib.contextmanager
    def _open_http(self):
        body = json.dumps({"instances": [[1.0, 2.0]]})
        with contextlib.closing(
            http.client.HTTPConnection(self._server.address, timeout=60)
        ) as connection:

            def ask():
                connection.request("POST", "/v1/models/other:predict", body)
                response = connection.getresponse()
                content = response.read()
                if response.status != 200:
                    raise OSError(response.status, content)

            yield ask

    @contextlib.contextmanager
    def _open_rpc(self):
        request = predict_message(b"serving_default", b"x", make_floats([1.0, 2.0]), name=b"other")
        with self._server.open_channel() as channel:
            call = channel.unary_unary(f"/{PREDICTION_SERVICE}/Predict")
            yield lambda: call(request, timeout=60)

    def _run(self):
        with contextlib.ExitStack() as stack:
            ask = stack.enter_context(self._open())
            while not self._stop.is_set():
                start = time.perf_counter()
                try:
                    ask()
                except (OSError, grpc.RpcError) as error:
                    self.errors.append(error)
                    stack.close()
                    ask = stack.enter_context(self._open())
                self.seconds.append(time.perf_counter() - start)
                time.sleep(self._pause)


def _fill(text, size):
    return (text * (size // len(text) + 1))[: size // len(text) * len(text)]


@functools.cache
def make_bodies(size=10 * MEGABYTE):
    """Return the bodies of hostile requests of about `size` bytes: (body, headers, statuses)."""

    def predict(signature, values):
        return b'{"signature_name": "%s", "inputs": %s}' % (signature, values)

    numbers = lambda values: predict(b"numbers", values)
    text = lambda values: predict(b"text", values)
    lists = b"[" + _fill(b"[],", size) + b"[]]"
    ragged = b"[" + b",".join(b"[" * (i % 40) + b"0" + b"]" * (i % 40) for i in range(3000)) + b"]"
    bomb = io.BytesIO()
    with gzip.GzipFile(fileobj=bomb, mode="wb", compresslevel=9) as file:
        for _ in range(size // MEGABYTE * 100):
            file.write(bytes(MEGABYTE))
    letters = _fill(b"a", size // 10)
    gzip_header = {"Content-Encoding": "gzip"}
    return {
        "ragged lists, 120 kB": (numbers(ragged), {}, {400}),
        "numbers and a long text, 120 kB": (numbers(b"[" + b"0," * 30_000 + b'"' + b"x" * 60_000 + b'"]'), {}, {400}),
        "empty lists": (numbers(lists), {}, {200}),
        "empty lists, gzip": (gzip.compress(numbers(lists), 1), gzip_header, {200}),
        "gzip bomb": (bomb.getvalue(), gzip_header, {413}),
        "33 letters for (a+)+$": (text(b'["' + b"a" * 33 + b'!"]'), {}, {200}),
        "letters for (a+)+$": (text(b'["' + letters + b'!"]'), {}, {200}),
        "nested lists": (numbers(b"[" * size), {}, {400}),
        "nested objects": (numbers(_fill(b'{"a":', size)), {}, {400}),
        "long integer": (numbers(b"[[" + b"1" * size + b"]]"), {}, {400}),
        "long float": (numbers(b"[[0." + b"1" * size + b"]]"), {}, {200, 400}),
        "huge exponents": (numbers(b"[[" + _fill(b"1e999999,", size) + b"0]]"), {}, {200}),
        "NaN and Infinity": (numbers(b"[[" + _fill(b"NaN,-Infinity,", size) + b"0]]"), {}, {200}),
        "zeros, large response": (numbers(b"[[" + b"0.1," * (size // 4) + b"0]]"), {}, {200}),
        "integers": (numbers(b"[[" + b"7," * (size // 2) + b"0]]"), {}, {200}),
        "empty texts": (text(b"[" + _fill(b'"",', size) + b'""]'), {}, {200, 400}),
        "escapes": (text(b'["' + _fill(rb"\u0061", size) + b'"]'), {}, {200}),
        "base64": (text(b'[{"b64": "' + _fill(b"YWFh", size) + b'"}]'), {}, {200}),
        "invalid base64": (text(b"[" + _fill(b'{"b64": "?"},', size) + b"0]"), {}, {400}),
        "invalid UTF-8": (text(b'["' + b"\xff" * size + b'"]'), {}, {400}),
        "equal keys": (b"{" + _fill(b'"a":0,', size) + b'"instances":[]}', {}, {400}),
        "empty objects": (b'{"instances": [' + _fill(b"{},", size) + b"{}]}", {}, {400}),
        "empty examples": (b'{"signature_name": "classify", "examples": [' + _fill(b"{},", size // 4) + b"{}]}", {}, {200, 400}),
        "not JSON": (b" " * size, {}, {400}),
    }  # fmt: skip


def get_path(body):
    """Return the path of a request with a body."""
    return CLASSIFY if b'"examples"' in body[:60] else PREDICT


HEAD = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\n".encode()
CHUNKED_HEAD = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
SMALL_REQUEST = HEAD + b'Content-Length: 17\r\n\r\n{"inputs": [[0]]}'
# Parts of 100 MB.
LETTERS = [b"x" * MEGABYTE] * 100


def read_status(connection):
    """Return the status of a response, or 0 if the connection was closed without one."""
    try:
        line = connection.makefile("rb").readline()
    except OSError:
        return 0
    return int(line.split()[1]) if line else 0


def _send_head_slowly(server):
    """Send the head of a request one byte at a time, on several connections."""
    connections = [server.connect() for _ in range(50)]
    for byte in HEAD[:20]:
        for connection in connections:
            connection.send(bytes([byte]))
        time.sleep(0.05)
    for connection in connections:
        connection.close()


def _flood(server, *parts):
    """Send bytes until the server closes the connection, and return the status of its response."""
    with server.connect() as connection:
        with contextlib.suppress(OSError):
            for part in parts:
                connection.sendall(part)
        return read_status(connection)


def _send_small_chunks(server):
    with server.connect() as connection:
        connection.sendall(CHUNKED_HEAD + b"1\r\n[\r\n" * MEGABYTE + b"0\r\n\r\n")
        return read_status(connection)


def _open_connections(server):
    connections = []
    with contextlib.suppress(OSError):
        for _ in range(400):
            connections.append(server.connect())
    time.sleep(0.5)
    for connection in connections:
        connection.close()


def _declare_large_body(server):
    with server.connect() as connection:
        connection.sendall(HEAD + b"Content-Length: 99999999999999\r\n\r\n[")
        time.sleep(0.5)


def _declare_two_lengths(server):
    with server.connect() as connection:
        body = b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n"
        connection.sendall(HEAD + body)
        return read_status(connection)


def _read_no_response(server):
    """Request large responses without reading them."""
    body = make_bodies(MEGABYTE)["zeros, large response"][0]
    request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    connections = [server.connect() for _ in range(8)]
    for connection in connections:
        connection.sendall(request)
    time.sleep(2)
    for connection in connections:
        connection.close()


# Function of a server, and the statuses that it may get.
CONVERSATIONS = {
    "slow head, 50 connections": (_send_head_slowly, {None}),
    "endless header": (lambda server: _flood(server, HEAD + b"X-Long: ", *LETTERS), {431, 0}),
    "2,000,000 headers": (lambda server: _flood(server, HEAD + b"a:b\r\n" * 2_000_000), {431, 0}),
    "chunks of one byte": (_send_small_chunks, {400}),
    "endless chunk extension": (lambda server: _flood(server, CHUNKED_HEAD + b"1;x=", *LETTERS), {400, 431, 0}),
    "100,000 pipelined requests": (lambda server: _flood(server, SMALL_REQUEST * 100_000), {200, 400, 0}),
    "400 connections": (_open_connections, {None}),
    "large Content-Length": (_declare_large_body, {None}),
    "two lengths": (_declare_two_lengths, {400}),
    "responses that are not read": (_read_no_response, {None}),
}  # fmt: skip


# ---- gRPC ----------------------------------------------------------------------------------------


def _encode_number(value):
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def make_field(number, content):
    """Return a field of a message: bytes or a number."""
    if isinstance(content, int):
        return _encode_number(number << 3) + _encode_number(content)
    return _encode_number(number << 3 | 2) + _encode_number(len(content)) + content


def make_floats(values):
    """Return a `TensorProto` of one row."""
    content = struct.pack(f"<{len(values)}f", *values)
    return make_tensor(1, (1, len(values)), make_field(4, content))


def make_tensor(dtype, sizes, values):
    """Return a `TensorProto` with serialized fields of values."""
    shape = b"".join(make_field(2, make_field(1, size)) for size in sizes)
    return make_field(1, dtype) + make_field(2, shape) + values


def predict_message(signature, key, tensor, more=b"", name=b"target"):
    """Return a `PredictRequest`."""
    spec = make_field(1, make_field(1, name) + make_field(3, signature))
    return spec + make_field(2, make_field(1, key) + make_field(2, tensor)) + more


@functools.cache
def make_messages(size=10 * MEGABYTE):
    """Return hostile gRPC requests of about `size` bytes: (method, message, options, codes)."""
    numbers = lambda tensor, more=b"": predict_message(b"numbers", b"x", tensor, more)
    text = lambda values, count: predict_message(b"text", b"text", make_tensor(7, [count], values))
    row = lambda values, dtype=1, count=size // 4: numbers(make_tensor(dtype, (1, count), values))
    spec = make_field(1, make_field(1, b"target") + make_field(3, b"classify"))
    nested = b""
    for _ in range(2000):
        nested = make_field(3, make_field(15, nested))
    keys = b"".join(
        make_field(2, make_field(1, b"%d" % i) + make_field(2, b"")) for i in range(size // 16)
    )
    small, invalid, many = make_floats([1.0]), {"INVALID_ARGUMENT"}, {"RESOURCE_EXHAUSTED"}
    task = make_field(1, make_field(1, spec) + make_field(2, b"tensorflow/serving/classify"))
    gzip_options = {"compression": grpc.Compression.Gzip}
    return {
        "array of 4 TB": ("Predict", numbers(make_tensor(1, (10**6, 10**6), make_field(5, bytes(4)))), {}, invalid),
        "empty examples": ("Classify", spec + make_field(2, make_field(1, _fill(make_field(1, b""), size // 2))), {}, {"OK", *invalid}),
        "unknown fields": ("Predict", _fill(b"\x1a\x02ab", size), {}, invalid),
        "unknown groups": ("Predict", _fill(b"\x7b\x7c", size), {}, invalid),
        "bytes of 255": ("Predict", b"\xff" * size, {}, invalid),
        "zeros, large response": ("Predict", row(make_field(4, bytes(size // 4 * 4))), {}, {"OK"}),
        "packed floats": ("Predict", row(make_field(5, bytes(size // 4 * 4))), {}, {"OK"}),
        "single floats": ("Predict", row(_fill(b"\x2d\0\0\0\0", size), count=size // 5), {}, {"OK", *invalid}),
        "long integers": ("Predict", row(make_field(10, b"\xff" * (size // 10 * 10)), dtype=9), {}, invalid),
        "empty texts": ("Predict", text(_fill(make_field(8, b""), size), size // 2), {}, {"OK", *invalid}),
        "33 letters for (a+)+$": ("Predict", text(make_field(8, b"a" * 33 + b"!"), 1), {}, {"OK"}),
        "letters for (a+)+$": ("Predict", text(make_field(8, b"a" * (size // 10) + b"!"), 1), {}, {"OK"}),
        "many sizes": ("Predict", numbers(make_field(1, 1) + make_field(2, _fill(make_field(2, b""), size))), {}, invalid),
        "nested variants": ("Predict", numbers(make_field(1, 21) + make_field(15, nested)), {}, invalid),
        "many inputs": ("Predict", numbers(small, keys), {}, invalid),
        "equal inputs": ("Predict", numbers(small, _fill(make_field(2, make_field(1, b"x")), size)), {}, invalid),
        "many outputs": ("Predict", numbers(small, _fill(make_field(3, b"y"), size)), {}, invalid),
        "long name": ("Predict", predict_message(b"numbers", b"x", small, name=b"n" * size), {}, invalid),
        "many tasks": ("MultiInference", _fill(task, size), {}, invalid),
        "zeros, gzip": ("Predict", row(make_field(4, bytes(6 * (size // 4 * 4))), count=6 * (size // 4)), gzip_options, {"OK"}),
        "gzip bomb": ("Predict", bytes(80 * MEGABYTE), gzip_options, many),
        "large message": ("Predict", bytes(65 * MEGABYTE), {}, many),
        "long metadata": ("Predict", numbers(small), {"metadata": [("key", "x" * 100_000)]}, many),
    }  # fmt: skip


def _make_frame(kind, flags, stream, content=b""):
    return struct.pack("!I", len(content))[1:] + struct.pack("!BBI", kind, flags, stream) + content


def _make_header(name, value):
    # Without the compression of HTTP/2.
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


DATA, HEADERS, RESET, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
END_STREAM, END_HEADERS = 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CALL_HEADERS = b"".join(
    _make_header(name, value)
    for name, value in {
        **{b":method": b"POST", b":scheme": b"http", b":authority": b"localhost"},
        b":path": f"/{PREDICTION_SERVICE}/Predict".encode(),
        **{b"content-type": b"application/grpc", b"te": b"trailers"},
    }.items()
)


def _start_calls(count):
    return b"".join(
        _make_frame(HEADERS, END_HEADERS, 2 * n + 1, CALL_HEADERS) for n in range(count)
    )


def _send_frames(make_parts, settings=b"", num_connections=1, seconds=0.5):
    """Return a function that sends frames on connections, and keeps these open for some time.

    Args:
        make_parts: returns the frames when they are sent: to make all of them takes seconds.
        settings: the settings of the client.
        num_connections: number of connections.
        seconds: how long they stay open.
    """
    start = PREFACE + _make_frame(SETTINGS, 0, 0, settings)

    def send(server):
        parts = list(make_parts())
        connections = [server.connect_rpc() for _ in range(num_connections)]
        for connection in connections:
            connection.settimeout(5)
            with contextlib.suppress(OSError):
                for part in (start, *parts):
                    connection.sendall(part)
        time.sleep(seconds)
        for connection in connections:
            connection.close()

    return send


def _send_preface_slowly(server):
    connections = [server.connect_rpc() for _ in range(50)]
    for byte in PREFACE[:20]:
        for connection in connections:
            connection.send(bytes([byte]))
        time.sleep(0.05)
    for connection in connections:
        connection.close()


def _open_rpc_connections(server):
    connections = [server.connect_rpc() for _ in range(400)]
    time.sleep(0.5)
    for connection in connections:
        connection.close()


def _make_large_calls():
    message = make_messages(MEGABYTE)["zeros, large response"][1]
    message = struct.pack("!BI", 0, len(message)) + message
    for n in range(8):
        yield _make_frame(HEADERS, END_HEADERS, 2 * n + 1, CALL_HEADERS)
        for start in range(0, len(message), 1 << 14):
            part = message[start : start + (1 << 14)]
            is_last = start + len(part) == len(message)
            yield _make_frame(DATA, END_STREAM * is_last, 2 * n + 1, part)


LARGE_PREFIX = struct.pack("!BI", 0, 60 * MEGABYTE)
# Functions of a server.
RPC_CONVERSATIONS = {
    "slow preface, 50 connections": _send_preface_slowly,
    "400 connections": _open_rpc_connections,
    "endless header": _send_frames(lambda: [
        _make_frame(HEADERS, 0, 1, CALL_HEADERS),
        *[_make_frame(CONTINUATION, 0, 1, _make_header(b"x", b"y" * 90) * 170)] * 5000,
    ]),
    "200,000 calls that are reset": _send_frames(lambda: [
        b"".join(
            _make_frame(HEADERS, END_HEADERS, 2 * n + 1, CALL_HEADERS)
            + _make_frame(RESET, 0, 2 * n + 1, bytes(4)) for n in range(start, start + 1000)
        )
        for start in range(0, 200_000, 1000)
    ]),
    "100,000 pings": _send_frames(lambda: [_make_frame(PING, 0, 0, bytes(8)) * 1000] * 100),
    "100,000 settings": _send_frames(lambda: [_make_frame(SETTINGS, 0, 0) * 1000] * 100),
    "1,000,000 empty frames": _send_frames(
        lambda: [_start_calls(1), *[_make_frame(DATA, 0, 1) * 1000] * 1000]
    ),
    "100 calls without a request": _send_frames(lambda: [_start_calls(100)], seconds=2.5),
    "1,000 calls without a request, 10 connections": _send_frames(
        lambda: [_start_calls(100)], num_connections=10, seconds=2.5
    ),
    "100 calls with a part of a request": _send_frames(
        lambda: [_start_calls(n + 1)[n * len(_start_calls(1)) :] + _make_frame(DATA, 0, 2 * n + 1, LARGE_PREFIX) for n in range(100)],
        seconds=2.5,
    ),
    "a request byte by byte": _send_frames(
        lambda: [_start_calls(1) + _make_frame(DATA, 0, 1, LARGE_PREFIX), *[_make_frame(DATA, 0, 1, b"x") * 1000] * 60]
    ),
    "responses that are not read": _send_frames(_make_large_calls, settings=struct.pack("!HI", 4, 0)),
}  # fmt: skip
