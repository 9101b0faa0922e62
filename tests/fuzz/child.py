"""Read damaged files in turn, and report the result of each.

A line of input, `case FORMAT NUMBER` or `file FORMAT PATH`, is answered by `begun`, and by `value`,
`error TYPE` or `bad TEXT` when it is done. The memory is limited to 2 GiB above its initial size.
"""

import importlib
import os
import pathlib
import resource
import sys
import tempfile
import time
import traceback
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import h5py  # noqa: F401
import PIL.Image  # noqa: F401

from fuzz import FORMATS
from fuzz.clear import is_clear
from fuzz.mutations import case

MEMORY = 2 << 30
# Functions that run other programs, or any program that a file names.
RUNS = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty")
RUNS += ("pickle.find_class", "socket.connect", "urllib.Request", "webbrowser.open")
happened = []


def watch(event, args):
    if event in RUNS:
        happened.append(f"{event}{args}")
        raise RuntimeError(f"a file made {event}{args} happen")


def outcome(module, data):
    happened.clear()
    started = time.monotonic()
    try:
        module.parse(data)
        said = "value"
    except BaseException as error:
        said = f"error {type(error).__name__}"
        if not is_clear(error):
            text = " | ".join(traceback.format_exc().splitlines()[-7:])
            said = f"bad {type(error).__name__}: {text}"
    if happened:
        return f"bad {happened}"
    took = time.monotonic() - started
    return f"bad it took {took:.1f} s" if took > 10 else said


def main():
    warnings.simplefilter("ignore")
    modules = {name: importlib.import_module(f"fuzz.formats.{name}") for name in FORMATS}
    for module in modules.values():
        said = [outcome(module, seed) for seed in module.seeds()]
        refused = getattr(module, "REFUSED", 0)
        assert [text for text in said if text != "value"] == ["error ValueError"] * refused, (
            module,
            said,
        )
    sys.addaudithook(watch)
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    print("ready", flush=True)
    for line in sys.stdin:
        what, name, which = line.split()
        data = (
            case(modules[name], int(which)) if what == "case" else pathlib.Path(which).read_bytes()
        )
        print("begun", flush=True)
        print(outcome(modules[name], data).replace("\n", " "), flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        main()
