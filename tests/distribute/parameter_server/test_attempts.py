"""Several attempts at one closure: servers do one and the same of them, whenever a worker dies."""

import dataclasses
import itertools
import threading

import numpy as np
import pytest

from distribute.parameter_server.connections import pair
from meshflow.core.runtime.context import variable_lock
from meshflow.distribute.parameter_server.server.attempts import FINISHED
from meshflow.distribute.parameter_server.server.parameter_server import ParameterServer
from meshflow.distribute.parameter_server.server.remote_server import ServerService
from meshflow.distribute.parameter_server.transport.messages import (
    CompletedAttempt,
    Decision,
    PullRequest,
    Push,
)
from meshflow.distribute.parameter_server.worker.server_client import (
    MAX_FORWARDED_BYTES,
    AttemptFailedError,
    ServerClient,
)

CLOSURE = 7


@pytest.fixture
def servers():
    made = [ParameterServer(n) for n in range(2)]
    for server in made:
        server.create(1, np.zeros(2, np.float32), "v")
    return made


def push(attempt, value):
    return Push(CLOSURE, adds={1: np.full(2, value, np.float32)}, attempt=attempt)


def values(servers):
    return [float(np.asarray(s.read((1,))[1][1])[0]) for s in servers]


def decide(server, attempt, ballot):
    return server.exchange(Decision(CLOSURE, attempt, ballot), PullRequest())


def test_servers_complete_an_attempt_together(servers):
    assert [s.stage(push(0, 1.0), (0, 0)) for s in servers] == [None, None]
    decide(servers[0], 0, (0, 0))
    # The worker is killed here. Another worker has other numbers, and is told that they are too
    # late.
    assert [s.stage(push(1, 10.0), (0, 1)) for s in servers] == [CompletedAttempt(0, {}), None]
    repeated = [decide(s, 0, (0, 1)).repeated for s in servers]
    assert repeated == [True, False]
    assert values(servers) == [1.0, 1.0]
    assert all(not s._attempts._staged for s in servers)


def test_late_worker_is_refused(servers):
    for server in servers:
        server.stage(push(0, 1.0), (0, 0))
    assert [s.stage(push(1, 10.0), (0, 1)) for s in servers] == [None, None]
    late = [decide(s, 0, (0, 0)) for s in servers]
    assert [c.refused for c in late] == [0, 0]
    assert values(servers) == [0.0, 0.0]
    for server in servers:
        assert decide(server, 1, (0, 1)).refused is None
    assert values(servers) == [10.0, 10.0]
    # With a ballot of the next round, the first worker learns the result.
    assert servers[0].stage(push(0, 1.0), (1, 0)) == CompletedAttempt(1, {})
    assert values(servers) == [10.0, 10.0]


def test_push_to_one_server_is_also_refused(servers):
    assert servers[0].stage(push(1, 10.0), (0, 1)) is None
    assert servers[0].exchange(push(0, 1.0), PullRequest()).refused == 0
    decide(servers[0], 1, (0, 1))
    assert servers[0].exchange(push(0, 1.0), PullRequest()).repeated
    assert values(servers) == [10.0, 0.0]


def test_servers_without_a_part_record_the_attempt(servers):
    servers[0].exchange(push(0, 1.0), PullRequest())
    assert [s.stage(push(1, 10.0), (0, 1)) for s in servers] == [CompletedAttempt(0, {}), None]
    for server in servers:
        decide(server, 0, (0, 1))
    assert values(servers) == [1.0, 0.0]
    assert servers[1].stage(push(2, 100.0), (0, 2)) == CompletedAttempt(0, {})
    assert servers[1].stage(push(3, 100.0), (0, 3), floor=CLOSURE + 1) == CompletedAttempt(
        FINISHED, {}
    )


@pytest.fixture
def told(servers):
    """Record messages to servers: which server, and which method."""
    found = []
    for server in servers:
        for name in ("stage", "exchange"):

            def noted(push, *args, _call=getattr(server, name), _told=(server.server_id, name)):
                if push is not None:
                    found.append(_told)
                return _call(push, *args)

            setattr(server, name, noted)
    return found


def test_each_server_is_notified_once(servers, told):
    exchanges = ServerClient(servers)
    changes, repeated = exchanges.push(CLOSURE, 0, 0, [push(0, 1.0), push(0, 1.0)])
    assert not repeated and [c.clock for c in changes] == [s.clock for s in servers]
    assert told == [(0, "exchange"), (1, "exchange")]
    assert values(servers) == [1.0, 1.0]
    # The next attempt hears of both.
    _, repeated = exchanges.push(CLOSURE, 1, 0, [push(1, 10.0), push(1, 10.0)])
    assert repeated and values(servers) == [1.0, 1.0]


def test_server_with_the_largest_part_is_first_and_large_parts_are_staged(servers, told):
    exchanges, part = ServerClient(servers), np.ones(MAX_FORWARDED_BYTES // 4, np.float32)
    for server in servers:
        server.create(2, np.zeros_like(part), "large")
    exchanges.push(CLOSURE, 0, 0, [push(0, 1.0), Push(CLOSURE, adds={2: part})])
    assert told == [(1, "exchange"), (0, "exchange")]
    told.clear()
    more = [Push(CLOSURE + 1, adds={1: np.ones(2, np.float32)}, sets={2: part}) for _ in range(2)]
    exchanges.push(CLOSURE + 1, 0, 0, more)
    assert [name for _, name in told] == ["stage", "stage", "exchange", "exchange"]
    assert values(servers) == [2.0, 1.0]


def test_first_server_knows_the_parts_of_others(servers):
    exchange = servers[1].exchange

    def killed(message, *args):
        raise KeyboardInterrupt

    servers[1].exchange = killed
    with pytest.raises(KeyboardInterrupt):
        ServerClient(servers).push(CLOSURE, 0, 0, [push(0, 1.0), push(0, 2.0)])
    assert values(servers) == [1.0, 0.0]
    servers[1].exchange = exchange
    # Another one has other numbers, and writes on the first server only.
    _, repeated = ServerClient(servers).push(CLOSURE, 1, 0, [push(1, 10.0), None])
    assert repeated and values(servers) == [1.0, 2.0]
    # The first worker was suspended, and continues.
    assert exchange(push(0, 2.0), PullRequest()).repeated and values(servers) == [1.0, 2.0]


def test_parts_of_others_are_stored_until_done(servers):
    exchanges = ServerClient(servers)

    def known():
        return {c: d.others for c, d in servers[0]._attempts._done.items() if d.others}

    # A long closure, such as one with a smaller number, keeps all these from being over.
    for closure in range(CLOSURE, CLOSURE + 20):
        parts = [Push(closure, adds={1: np.ones(2, np.float32)}) for _ in servers]
        exchanges.push(closure, 0, 0, parts)
        assert list(known()) == [closure]
    exchanges.pull(0)
    assert known() == {} and values(servers) == [20.0, 20.0]
    # Another attempt still hears that all of it was done.
    parts = [Push(CLOSURE, adds={1: np.ones(2, np.float32)}, attempt=1) for _ in servers]
    _, repeated = ServerClient(servers).push(CLOSURE, 1, 0, parts)
    assert repeated and values(servers) == [20.0, 20.0]


def test_attempt_for_one_server_finishes_an_earlier_attempt(servers):
    for server in servers:
        server.stage(push(1, 10.0), (0, 1))
    decide(servers[0], 1, (0, 1))
    # The other attempt's worker is killed here. This worker has a part only for the first server,
    # which is done.
    _, repeated = ServerClient(servers).push(CLOSURE, 0, 0, [push(0, 1.0), None])
    assert repeated and values(servers) == [10.0, 10.0]


def test_servers_killed_between_two_parts_complete_them(tmp_path):
    class Dying:
        """Simulate a server that is killed before it processes a message, or before it replies, and
        restarts."""

        def __init__(self, number):
            self.folder, self.deaths = str(tmp_path / str(number)), []
            self.begin()

        def begin(self):
            self.methods = ServerService(0, self.folder).methods(pair()[0])

        def exchange(self, *args):
            return self.called("exchange", *args)

        def stage(self, *args):
            return self.called("stage", *args)

        def called(self, name, *args):
            when = self.deaths.pop(0) if self.deaths else None
            if when == "before":
                self.begin()
            found = self.methods[name](*args)
            if when != "after":
                return found
            self.begin()
            return self.called(name, *args)

    servers = [Dying(n) for n in range(2)]
    for server in servers:
        server.methods["create"](1, np.zeros(2, np.float32), "v", None)
    ways = list(itertools.product([None, "before", "after"], repeat=3))
    exchanges, total = ServerClient(servers), 0.0
    for closure, (first, second, both) in enumerate(ways):
        servers[0].deaths, servers[1].deaths = [first, both], [second, both]
        total += closure
        parts = [Push(closure, adds={1: np.full(2, closure, np.float32)}) for _ in servers]
        # The first attempt is sometimes suspended after the first server's part.
        if closure % 2:
            known = dataclasses.replace(parts[0], others={1: parts[1]})
            servers[0].exchange(known, PullRequest(), 0)
            other = [Push(closure, adds={1: np.ones(2, np.float32)}, attempt=1), None]
            assert exchanges.push(closure, 1, 0, other)[1]
        exchanges.push(closure, 0, 0, parts)
        found = [float(s.methods["read"]((1,))[1][1][0]) for s in servers]
        assert found == [total, total], (closure, first, second, both)


def test_late_worker_completes_the_later_attempt(servers):
    for server in servers:
        server.stage(push(1, 10.0), (0, 1))
    decide(servers[1], 1, (0, 1))
    # Here the other attempt's worker is suspended: this worker is refused, queries the state, and
    # completes the attempt.
    _, repeated = ServerClient(servers).push(CLOSURE, 0, 0, [push(0, 1.0), push(0, 1.0)])
    assert repeated and values(servers) == [10.0, 10.0]


def test_failed_attempt_is_completed_or_not_applied(servers):
    first = dataclasses.replace(push(0, 1.0), others={1: push(0, 2.0)})
    servers[0].exchange(first, PullRequest())
    client = ServerClient(servers)
    client.settle(CLOSURE, 1, 0)
    assert values(servers) == [1.0, 2.0]
    client.settle(CLOSURE + 1, 1, 0)
    late = [dataclasses.replace(push(0, 1.0), closure=CLOSURE + 1), None]
    for attempt in (0, 2):
        with pytest.raises(AttemptFailedError):
            client.push(CLOSURE + 1, attempt, 0, late)
    assert values(servers) == [1.0, 2.0]


def test_failure_after_another_staging_is_noticed(servers):
    client, other = ServerClient(servers), ServerClient(servers)
    exchange = client._exchange_all

    def fail_first(*args):
        other.settle(CLOSURE, 0, 0)
        return exchange(*args)

    client._exchange_all = fail_first
    with pytest.raises(AttemptFailedError):
        client.push(CLOSURE, 1, 0, [push(1, 10.0), None])
    assert values(servers) == [0.0, 0.0]


def test_a_push_does_not_wait_for_other_programs(servers):
    # The first of its kind is compiled.
    servers[0].exchange(push(0, 1.0), PullRequest())
    later = Push(CLOSURE + 1, adds={1: np.ones(2, np.float32)})
    pushing = threading.Thread(
        target=lambda: servers[0].exchange(later, PullRequest()), daemon=True
    )
    with variable_lock:
        pushing.start()
        pushing.join(60)
        assert not pushing.is_alive()
    assert values(servers) == [2.0, 0.0]


def test_restarted_server_restores_staged_parts(tmp_path):
    def service():
        return ServerService(0, str(tmp_path)).methods(pair()[0])

    server = service()
    server["create"](1, np.zeros(2, np.float32), "v", None)
    server["stage"](push(0, 3.0), (0, 0), 0)
    server = service()
    server["exchange"](Decision(CLOSURE, 0, (0, 0)), PullRequest(), 0)
    np.testing.assert_array_equal(service()["read"]((1,))[1][1], [3.0, 3.0])
