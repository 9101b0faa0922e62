"""Test messages to a worker in another process, and its cache."""

import functools

from meshflow.distribute.parameter_server.processes import worker_service
from meshflow.distribute.parameter_server.processes.worker_service import WorkerService
from meshflow.distribute.parameter_server.strategy import ClosureOptions, ParameterServerStrategy
from meshflow.distribute.parameter_server.worker import remote_worker
from meshflow.distribute.parameter_server.worker.calls import ClosureCall
from meshflow.distribute.parameter_server.worker.remote_worker import FunctionPickles, SentObjects


def test_repeated_function_is_cached_among_many(monkeypatch):
    for module in (remote_worker, worker_service):
        monkeypatch.setattr(module, "MAX_FUNCTIONS", 16)
    strategy = ParameterServerStrategy(engine="threads", workers=2)
    functions = FunctionPickles(strategy)
    book, service = SentObjects(functions), WorkerService(0, [], False)
    service._configure([], 1, ClosureOptions())

    def sent(function):
        """Return whether a call sends a function, which the worker then calls."""
        request = book.make_request(ClosureCall(0, function, (), {}), strategy)
        assert service._call(request).function() == function()
        book.mark_received(request)
        return bool(request.functions)

    early, late = ([functools.partial(int, n) for n in range(count)] for count in (12, 4))
    for function in early:
        functions.get_pickle(function)  # for another worker
    assert sent(list) and all(map(sent, early[:9]))
    # The coordinator is not sure that the worker has it, and once it was sent again it is.
    assert sent(list) and not sent(list)
    assert all(map(sent, early[9:] + late)) and not sent(list)
    assert len(service._functions) == 16
