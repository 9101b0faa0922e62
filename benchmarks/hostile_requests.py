"""Latency of a second client of `meshflow serve` during hostile requests, over HTTP and gRPC.

    python benchmarks/hostile_requests.py [--size 10] [--rounds 5] [--only TEXT] [--dry-run]

A server process serves two models. While a hostile request to one of them is being answered, another
client sends short requests to the other one, by the same protocol. Prints the round with the smallest maximum, because other programs
of a busy machine delay the server too, and appends it to RESULTS.md.
"""

import argparse
import datetime
import os
import pathlib
import platform
import sys
import tempfile
import threading
import time

FOLDER = pathlib.Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent / "tests"))

import hostile  # noqa: E402

# The second client is observed for at least this time.
SECONDS = 1.5


def measure(server, attack, is_rpc):
    """Return the numbers of a row, and the status of the attack."""
    memory, done = [server.count_memory()], threading.Event()

    def watch():
        while not done.wait(0.02):
            memory.append(server.count_memory())

    watcher = threading.Thread(target=watch)
    with hostile.SecondClient(server, is_rpc=is_rpc) as client:
        watcher.start()
        start = time.perf_counter()
        status = attack(server)
        seconds = time.perf_counter() - start
        time.sleep(max(SECONDS - seconds, 0.0))
    done.set()
    watcher.join()
    times = sorted(1000 * s for s in client.seconds)
    assert not client.errors, client.errors[:3]
    middle, high = times[len(times) // 2], times[int(0.99 * len(times))]
    return [len(times), middle, high, times[-1], seconds, max(memory) - memory[0]], status


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=int, default=10, help="megabytes of a large request")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="part of the names of the requests")
    parser.add_argument("--dry-run", action="store_true", help="do not change RESULTS.md")
    options = parser.parse_args()
    bodies = hostile.make_bodies(options.size * hostile.MEGABYTE)
    attacks = {
        name: lambda server, body=body, headers=headers: server.send(
            "POST", hostile.get_path(body), body, headers
        )[0]
        for name, (body, headers, _) in bodies.items()
    }  # fmt: skip
    attacks = {"none": lambda server: None, **attacks}
    attacks |= {name: function for name, (function, _) in hostile.CONVERSATIONS.items()}
    calls = {
        name: lambda server, method=method, content=content, options=call_options: server.call(
            method, content, **options
        )
        for name, (method, content, call_options, _) in hostile.make_messages(
            options.size * hostile.MEGABYTE
        ).items()
    }
    calls = {"none": lambda server: None, **calls, **hostile.RPC_CONVERSATIONS}
    rows = [("HTTP", *row) for row in attacks.items()] + [("gRPC", *row) for row in calls.items()]
    lines = [
        "| protocol | request | second client: requests | median, ms | 99%, ms | maximum, ms | status | seconds | more memory, MB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    with tempfile.TemporaryDirectory() as folder:
        server = hostile.Server(hostile.save_models(pathlib.Path(folder)))
        try:
            time.sleep(5)
            for protocol, name, attack in rows:
                if options.only not in f"{protocol} {name}":
                    continue
                is_rpc = protocol == "gRPC"
                rounds = [measure(server, attack, is_rpc) for _ in range(options.rounds)]
                # Other programs of the machine only add to the latency.
                best, status = min(rounds, key=lambda numbers: numbers[0][3])
                count, middle, high, longest, seconds, memory = best
                lines.append(
                    f"| {protocol} | {name} | {count:.0f} | {middle:.1f} | {high:.1f} | {longest:.1f} | {status or '-'} | "
                    f"{seconds:.2f} | {memory:.0f} |"
                )
                print(lines[-1], flush=True)
        finally:
            server.close()
    today, machine = datetime.date.today(), f"{platform.machine()}, {os.cpu_count()} cores"
    load = os.getloadavg()[0]
    title = f"## Hostile requests to `meshflow serve` ({today}, {machine}, load {load:.1f}, {options.size} MB, best of {options.rounds} rounds)"
    if not options.dry_run:
        with (FOLDER / "RESULTS.md").open("a") as file:
            file.write("\n".join(["", title, "", *lines, ""]))


if __name__ == "__main__":
    main()
