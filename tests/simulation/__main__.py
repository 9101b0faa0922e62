"""Run simulations of given seeds, with their whole traces: `python -m simulation SCENARIO SEED [SEED ...]`.

With `--range`, the two seeds are the first one and the one after the last one, and only failures are shown.
"""

import argparse
import os
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from simulation import SCENARIOS
from simulation.scheduler import SimulationFailure


def main():
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__.partition("\n")[0])
    parser.add_argument("scenario", choices=list(SCENARIOS))
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--range", action="store_true", help="run all seeds from the first to the second one")
    options = parser.parse_args()
    simulate = SCENARIOS[options.scenario]()
    seeds = range(*options.seeds) if options.range else options.seeds
    num_failures, start = 0, time.perf_counter()
    for seed in seeds:
        try:
            report, here = simulate(seed, keeps_trace=not options.range)
        except SimulationFailure as failure:
            num_failures += 1
            print(failure)
            continue
        if not options.range:
            print(here.format_trace())
            print(report)
    seconds = time.perf_counter() - start
    print(f"{len(seeds)} schedules, {num_failures} failures, {len(seeds) / seconds:.0f} per second", file=sys.stderr)
    return bool(num_failures)


if __name__ == "__main__":
    sys.exit(main())
