"""First steps, new shapes, deep networks and steady steps: Meshflow, cold and warm, next to TensorFlow and PyTorch.

    bash benchmarks/peers.sh
    .venv/bin/python benchmarks/kinds.py --peers .venv-peers/bin/python
    .venv/bin/python benchmarks/kinds.py --quick                  # a smoke test with tiny sizes

The rows (`--only text,saved,decode,notebook,chains,first,steady`):

* text: one epoch over 60 batches that all have different lengths.
* saved: 60 lengths of a loaded SavedModel's signature, or of its function; loading included.
* decode: 20 tokens, each from all earlier ones, by `model(x)`, `predict` and `tf.function`.
* notebook: 20 small models in one process.
* chains: residual chains of 50, 100 and 200 convolutions, and DenseNet121, on one core.
* first: build, compile and fit 4 steps and a partial one, for many types of models.
* steady: training steps and predictions of the same models, in float32 and bfloat16, on one and two cores.

Each measurement is a new process. "Cold" has an empty folder for compiled programs, "warm" the folder that the cold process
of the same round filled. CPU seconds are those of the process, with all threads, without imports. "Programs" counts what XLA
compiles. Chains and first fits continue until steps are steady; "step" is the median of full steps on the wall clock, and the
peak memory includes these steps. Weights are equal where a model draws no random numbers, and so must be the losses.

In the row "steady" the processes of all columns of a case are ready before the first round, and measure in turns. Its tables
have the time of each column and its ratio to the faster peer, with the smallest and the greatest ratio of a round. PyTorch
uses channels_last for images, autocast for bfloat16, and its fused Adam. `--batches 1,16` replaces the batch sizes of the models.
`--json FILE --resume` continues an earlier run.

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
    "saved": tuple(
        f"{name} {call}" for call in ("signature", "function") for name in kinds_models.TEXT_MODELS
    ),
    "decode": ("call", "predict", "function", "signature"),
    "notebook": ("all",),
    "chains": tuple(kinds_models.CHAINS),
    "first": tuple(kinds_models.KINDS),
    "steady": tuple(name for name in kinds_models.KINDS if not name.endswith("_bf16")),
}
TITLES = {
    "text": "One epoch over 60 text lengths",
    "saved": "60 text lengths of a loaded SavedModel",
    "decode": "20 tokens of greedy decoding",
    "notebook": "A notebook of 20 small models",
    "chains": "Chains of convolutions, on one core",
    "first": "First fits",
    "steady": "Steady steps",
}
PEERS = ("tensorflow", "tensorflow jit", "torch", "torch compile", "torch autotune", "keras jax")
# Columns of the row steady only.
STEADY_COLUMNS = ("torch autotune", "keras jax")


def has_module(python, name):
    """Check whether an environment has a package, without importing it."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def has_case(column, case):
    """Check whether a column measures a case."""
    if case == "decode:function" and column == "torch":
        return False
    if case.startswith(("decode:call", "decode:predict", "saved:")) and column in (
        "tensorflow jit",
        "torch compile",
    ):
        # Compiling is an option of functions and of `fit`.
        return False
    if column in STEADY_COLUMNS and not case.startswith("steady"):
        return False
    case = case.split(",")[0].replace("steady:", "first:")
    if column == "keras jax":
        return case.split(":")[1] not in kinds_models.TENSORFLOW_KINDS
    # Importing the module would need PyTorch.
    return not column.startswith("torch") or f'"{case}"' in (HERE / "kinds_torch.py").read_text()


def make_command(column, case, options, cache):
    """Return the command that runs a case in a new process, and its environment."""
    environment = dict(os.environ, MESHFLOW_CACHE_DIR=cache)
    script, python = "kinds_run.py", sys.executable
    if column in PEERS:
        python = options.peers
        script = "kinds_torch.py" if column.startswith("torch") else script
    elif column.startswith("base"):
        environment["PYTHONPATH"] = os.path.join(options.base, "src")
    settings = {"tiny": options.quick, "seconds": 0.01 if options.quick else options.seconds}
    if case.startswith("steady"):
        settings["cores"] = int(case.split(",")[2])
        settings["batch"] = int(case.split(",")[3])
        # Programs do not run op by op first.
        environment["MESHFLOW_TIER"] = "compile"
    return [python, str(HERE / script), column, case, json.dumps(settings)], environment


def find_reason(log):
    """Return the line of a failed process's log that names the reason."""
    # TensorFlow's log is not the reason.
    lines = re.findall(r"^(?![IWE]\d{4} |WARNING)\S.*", log, re.MULTILINE)
    return lines[-1][:300] if lines else ""


def measure(column, case, options, cache):
    """Run a case in a new process and return its JSON object, or its failure."""
    command, environment = make_command(column, case, options, cache)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=options.timeout
        )
    except subprocess.TimeoutExpired:
        return {"error": f"longer than {options.timeout} s"}
    if done.returncode:
        return {"error": f"exit status {done.returncode}: {find_reason(done.stderr)}"}
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


class SteadyProcess:
    """A process that measures a round for each line that it reads."""

    def __init__(self, column, case, options, cache):
        command, environment = make_command(column, case, options, cache)
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  `close` closes it.
        self._process = subprocess.Popen(
            command,
            text=True,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )

    def read(self):
        """Return the next JSON object, or the failure of the process."""
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._log.seek(0)
        return {"error": f"exit status {self._process.wait()}: {find_reason(self._log.read())}"}

    def measure(self):
        self._process.stdin.write("round\n")
        self._process.stdin.flush()
        return self.read()

    def close(self):
        self._process.kill()
        self._process.communicate()
        self._log.close()


def measure_steady(cases, columns, options):
    """Measure cases one after the other, with rounds of all columns in turns."""
    file = Path(options.json) if options.json else None
    results = json.loads(file.read_text()) if options.resume and file.exists() else {}
    for case in cases:
        missing = [c for c in columns if has_case(c, case) and c not in results.get(case, {})]
        if not missing:
            continue
        with contextlib.ExitStack() as stack:
            cache = stack.enter_context(tempfile.TemporaryDirectory())
            processes = {}
            for column in missing:
                processes[column] = SteadyProcess(column, case, options, cache)
                stack.callback(processes[column].close)
            ready = {column: process.read() for column, process in processes.items()}
            found = {column: [] for column in missing}
            for _ in range(options.rounds):
                for column, process in processes.items():
                    values = ready[column]
                    if "error" not in values:
                        values = values | process.measure()
                    found[column].append(values)
        results.setdefault(case, {}).update(found)
        shown = {
            column: "failed" if "error" in runs[0] else round(find_median(runs, "step_ms"), 2)
            for column, runs in found.items()
        }
        print(case, shown, file=sys.stderr, flush=True)
        if file:
            file.write_text(json.dumps(results, indent=1))
    return {case: results[case] for case in cases if case in results}


def compare_rounds(found, columns, key):
    """Return the ratio of Meshflow's median to that of the fastest peer, with its range over rounds, and the peer."""
    peers = {c: find_median(found.get(c), key) for c in columns if c in PEERS}
    peers = {column: value for column, value in peers.items() if value}
    own = find_median(found.get("meshflow cold"), key)
    if not own or not peers:
        return "-", "-"
    best = min(peers, key=peers.get)
    pairs = zip(found["meshflow cold"], found[best], strict=False)
    ratios = [mine[key] / peer[key] for mine, peer in pairs]
    return f"{own / peers[best]:.2f} ({min(ratios):.2f} to {max(ratios):.2f})", best


def format_steady(results, columns):
    """Return lines of the table of steady steps: a case, precision, number of cores and batch size a line."""
    lines = []
    for key, title in (("step_ms", "Training step, ms"), ("predict_ms", "Prediction, ms")):
        head = ["case", "precision", "cores", "batch", *columns, "ratio (range)", "to"]
        head = [name.replace("meshflow cold", "meshflow") for name in head]
        lines += [f"{title}:", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for case, found in results.items():
            values = [format_value(find_median(found.get(column), key)) for column in columns]
            row = [
                *case.split(":")[1].replace(",0", ",own").split(","),
                *values,
                *compare_rounds(found, columns, key),
            ]
            lines.append(f"| {' | '.join(row)} |")
        lines.append("")
    return lines


def find_median(runs, key):
    """Return the median of a value over rounds; None if it is absent or a run failed."""
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
    if row == "steady":
        return lines + format_steady(results, columns)
    lines += format_table(results, columns, "cpu_s", "CPU seconds")
    if row == "saved":
        lines += format_table(results, columns, "calls_cpu_s", "CPU seconds of the calls alone")
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
    parser.add_argument("--precisions", default="float32,bfloat16", help="of the row steady")
    parser.add_argument("--cores", default="1,2", help="numbers of cores of the row steady")
    parser.add_argument(
        "--batches", default="0", help="batch sizes of the row steady; 0: the model's"
    )
    parser.add_argument("--seconds", type=float, default=0.3, help="of a round of the row steady")
    parser.add_argument("--resume", action="store_true", help="skip the steady cases in --json")
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
        if not has_module(options.peers, "jax"):
            columns = [c for c in columns if c != "keras jax"]
    if options.columns:
        columns = [c for c in columns if c in options.columns.split(",")]
    selection = options.cases.split(",") if options.cases else None
    rows = {
        row: [f"{row}:{name}" for name in ROWS[row] if selection is None or name in selection]
        for row in options.only.split(",")
    }
    if "steady" in rows:
        rows["steady"] = [
            f"{case},{precision},{cores},{batch}"
            for case in rows["steady"]
            for precision in options.precisions.split(",")
            for cores in options.cores.split(",")
            for batch in options.batches.split(",")
        ]
    cases = [case for row, names in rows.items() if row != "steady" for case in names]
    results = measure_all(cases, columns, options) if cases else {}
    steady = [c for c in columns if not c.endswith("warm")]
    columns = [c for c in columns if c not in STEADY_COLUMNS]
    results |= measure_steady(rows.get("steady", ()), steady, options)
    lines = []
    for row, names in rows.items():
        if names:
            chosen = steady if row == "steady" else columns
            lines += format_row(row, {case: results[case] for case in names}, chosen)
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
