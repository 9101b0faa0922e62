"""First steps, new shapes and deep networks: Meshflow, cold and warm, next to TensorFlow and PyTorch.

    bash benchmarks/peers.sh
    .venv/bin/python benchmarks/kinds.py --peers .venv-peers/bin/python
    .venv/bin/python benchmarks/kinds.py --quick                  # a smoke test with tiny sizes

The rows (`--only text,decode,notebook,chains,first`):

* text: one epoch over 60 batches that all have different lengths.
* decode: 20 tokens, each from all earlier ones, by `model(x)`, `predict` and `tf.function`.
* notebook: 20 small models in one process.
* chains: residual chains of 50, 100 and 200 convolutions, and DenseNet121, on one core.
* first: build, compile and fit 4 steps and a partial one, for many types of models.

Each measurement is a new process. "Cold" has an empty folder for compiled programs, "warm" the folder that the cold process
of the same round filled. CPU seconds are those of the process, with all threads, without imports. "Programs" counts what XLA
compiles. Chains and first fits continue until steps are steady; "step" is the median of full steps on the wall clock, and the
peak memory includes these steps. Weights are equal where a model draws no random numbers, and so must be the losses.

The columns of PyTorch need an environment that has it, and a model in kinds_torch.py. `--base FOLDER` adds the Meshflow of
another checkout. Tables are appended to RESULTS.md, except for `--quick`.
"""

import argparse
import contextlib
import datetime
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import kinds_models

HERE = Path(__file__).parent
ROWS = {
    "text": kinds_models.TEXT_MODELS,
    "decode": ("call", "predict", "function", "signature"),
    "notebook": ("all",),
    "chains": tuple(kinds_models.CHAINS),
    "first": tuple(kinds_models.KINDS),
}
TITLES = {
    "text": "One epoch over 60 text lengths",
    "decode": "20 tokens of greedy decoding",
    "notebook": "A notebook of 20 small models",
    "chains": "Chains of convolutions, on one core",
    "first": "First fits",
}
PEERS = ("tensorflow", "tensorflow jit", "torch", "torch compile")


def has_module(python, name):
    """Check whether an environment has a package, without importing it."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def has_case(column, case):
    """Check whether a column measures a case."""
    if case == "decode:function" and column == "torch":
        return False
    if case in ("decode:call", "decode:predict") and column in ("tensorflow jit", "torch compile"):
        # Compiling is an option of functions and of `fit`.
        return False
    # Importing the module would need PyTorch.
    return not column.startswith("torch") or f'"{case}"' in (HERE / "kinds_torch.py").read_text()


def measure(column, case, options, cache):
    """Run a case in a new process and return its JSON object, or its failure."""
    environment = dict(os.environ, MESHFLOW_CACHE_DIR=cache)
    script, python = "kinds_run.py", sys.executable
    if column in PEERS:
        python = options.peers
        script = "kinds_torch.py" if column.startswith("torch") else script
    elif column.startswith("base"):
        environment["PYTHONPATH"] = os.path.join(options.base, "src")
    settings = json.dumps({"tiny": options.quick})
    command = [python, str(HERE / script), column, case, settings]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=options.timeout
        )
    except subprocess.TimeoutExpired:
        return {"error": f"longer than {options.timeout} s"}
    if done.returncode:
        # TensorFlow's log is not the reason.
        lines = re.findall(r"^(?![IWE]\d{4} |WARNING)\S.*", done.stderr, re.MULTILINE)
        return {"error": f"exit status {done.returncode}: {lines[-1][:300] if lines else ''}"}
    return json.loads(done.stdout.splitlines()[-1])


def measure_all(cases, columns, options):
    """Measure each case in all columns in turns, and return lists of results by case and column."""
    results = {case: {} for case in cases}
    for turn in range(options.rounds):
        for case in cases:
            with contextlib.ExitStack() as folders:
                caches = {}
                for column in columns:
                    if not has_case(column, case):
                        continue
                    library = column.split()[0]
                    if library not in caches:
                        folder = tempfile.TemporaryDirectory()
                        caches[library] = folders.enter_context(folder)
                    found = measure(column, case, options, caches[library])
                    results[case].setdefault(column, []).append(found)
                    shown = found.get("error") or f"{found['cpu_s']:.2f} CPU s"
                    print(f"round {turn + 1} {case} {column}: {shown}", file=sys.stderr, flush=True)
            if options.json:
                Path(options.json).write_text(json.dumps(results, indent=1))
    return results


def find_median(runs, key):
    """Return the median of a value over rounds; None where it is absent or a run failed."""
    if not runs or any(run.get(key) is None for run in runs):
        return None
    return statistics.median(run[key] for run in runs)


def format_value(value, digits=3):
    return "-" if value is None else f"{value:.{digits}g}" if value < 1000 else f"{value:,.0f}"


def format_table(results, columns, key, title):
    """Return lines of a table of one value: a case a line, with the ratios to TensorFlow's."""
    has_peer = "tensorflow" in columns
    has_programs = key in ("cpu_s", "total_cpu_s")
    head = ["case", *columns]
    ratios = [c for c in columns if c.startswith("meshflow")] if has_peer else []
    head += [f"{column} / tensorflow" for column in ratios]
    head += ["programs"] if has_programs else []
    lines = [f"{title}:", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for case, found in results.items():
        values = {column: find_median(found.get(column), key) for column in columns}
        row = [case.split(":")[1]]
        for column in columns:
            has_failed = any("error" in run for run in found.get(column, ()))
            row.append("failed" if has_failed else format_value(values[column]))
        for column in ratios:
            own, peer = values[column], values["tensorflow"]
            row.append(f"{own / peer:.2f}" if own and peer else "-")
        if has_programs:
            programs = "total_programs" if key.startswith("total") else "programs"
            count = find_median(found.get("meshflow cold"), programs)
            row.append("-" if count is None else f"{count:.0f}")
        lines.append(f"| {' | '.join(row)} |")
    return [*lines, ""]


def format_row(row, results, columns):
    """Return lines for the cases of a row."""
    lines = [f"### {TITLES[row]}", ""]
    lines += format_table(results, columns, "cpu_s", "CPU seconds")
    if row in ("chains", "first"):
        long = "CPU seconds with the steady steps"
        lines += format_table(results, columns, "total_cpu_s", long)
        lines += format_table(results, columns, "step_ms", "Steady step, ms")
        lines += format_table(results, columns, "total_peak_mb", "Peak memory, MB")
    else:
        lines += format_table(results, columns, "peak_mb", "Peak memory, MB")
    if row == "notebook":
        cells = {}
        for column, runs in results["notebook:all"].items():
            for run in runs:
                for title, values in run.get("cells", {}).items():
                    cells.setdefault(f"notebook:{title}", {}).setdefault(column, []).append(values)
        lines += format_table(cells, columns, "cpu_s", "CPU seconds of each model")
    return lines


def find_differences(results):
    """Return lines for failures, and for losses that should be equal but are not."""
    lines = []
    for case, found in results.items():
        for column, runs in found.items():
            lines += [f"- {case}, {column}: {run['error']}" for run in runs if "error" in run]
        losses = {
            column: runs[0]["loss"]
            for column, runs in found.items()
            if runs[0].get("is_deterministic") and not column.startswith("torch")
        }
        values = list(losses.values())
        precision = 0.05 if case.endswith("bf16") else 0.005
        if values and not all(math.isclose(v, values[0], rel_tol=precision) for v in values):
            text = ", ".join(f"{column} {value:.5g}" for column, value in losses.items())
            lines.append(f"- {case}: losses differ: {text}")
    return lines


def describe_machine():
    """Return the processor, its relevant instructions and the number of cores."""
    text = Path("/proc/cpuinfo").read_text()
    names, flags = re.findall(r"model name\s*: (.*)", text), re.findall(r"flags\s*: (.*)", text)
    flags = set(flags[0].split()) if flags else set()
    present = [flag for flag in ("avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    cores = len(os.sched_getaffinity(0))
    return f"{names[0] if names else 'unknown processor'}, {', '.join(present) or 'no AVX512'}, {cores} cores"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", help="Python of an environment made by peers.sh")
    parser.add_argument("--base", help="another checkout of Meshflow")
    parser.add_argument("--only", default=",".join(ROWS), help="rows, separated by commas")
    parser.add_argument("--cases", default="", help="names of cases, separated by commas")
    parser.add_argument("--columns", default="", help="columns, separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=int, default=1200, help="seconds for one measurement")
    parser.add_argument("--quick", action="store_true", help="tiny sizes and one round")
    parser.add_argument("--json", help="file for every measurement")
    parser.add_argument("--note", default="", help="a remark about the machine or the version")
    parser.add_argument("--no-record", action="store_true", help="leave RESULTS.md unchanged")
    options = parser.parse_args()
    options.rounds = 1 if options.quick else options.rounds
    columns = ["meshflow cold", "meshflow warm"]
    columns += ["base cold", "base warm"] if options.base else []
    if options.peers:
        columns += [c for c in PEERS if has_module(options.peers, c.split()[0])]
    if options.columns:
        columns = [c for c in columns if c in options.columns.split(",")]
    selection = options.cases.split(",") if options.cases else None
    rows = {
        row: [f"{row}:{name}" for name in ROWS[row] if selection is None or name in selection]
        for row in options.only.split(",")
    }
    cases = [case for names in rows.values() for case in names]
    results = measure_all(cases, columns, options)
    lines = []
    for row, names in rows.items():
        if names:
            lines += format_row(row, {case: results[case] for case in names}, columns)
    differences = find_differences(results)
    lines += ["### Failures and differences", "", *differences, ""] if differences else []
    text = "\n".join(lines)
    print(text)
    if not (options.quick or options.no_record):
        versions = {}
        for found in results.values():
            for column, runs in found.items():
                versions |= {column.split()[0]: run["version"] for run in runs if "version" in run}
        names = ", ".join(f"{library} {version}" for library, version in versions.items())
        notes = f", {options.note}" if options.note else ""
        stamp = f"{datetime.date.today()}, {describe_machine()}, {names}, {options.rounds} rounds{notes}"
        with (HERE / "RESULTS.md").open("a") as file:
            file.write(f"\n## Kinds of models ({stamp})\n\n{text}")
    return 1 if differences and options.quick else 0


if __name__ == "__main__":
    sys.exit(main())
