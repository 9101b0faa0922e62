"""Build synthetic traces in JAX's format (XSpace)."""

import random

from meshflow.profiler.messages import pack

MS = 1_000_000


def event(name, start, duration, **stats):
    """An event; times in milliseconds."""
    return name, round(start * MS), round(duration * MS), stats


def space(planes, began=1_700_000_000_000_000_000):
    """Return an XSpace of {plane: {line: [events]}}, with the plane that contains the start time."""
    encoded = [_plane(name, lines) for name, lines in planes.items()]
    encoded.append(_plane("Task Environment", {}, profile_start_time=began))
    return pack([(1, one) for one in encoded])


def _plane(name, lines, **own):
    names, keys = {}, {}

    def stats(values):
        found = []
        for key, value in values.items():
            number = keys.setdefault(key, len(keys) + 1)
            found.append(pack([(1, number), (5, value) if isinstance(value, str) else (4, value)]))
        return found

    encoded = []
    for title, events in lines.items():
        packed = [
            pack(
                [
                    (1, names.setdefault(label, len(names) + 1)),
                    (2, start * 1000),
                    (3, duration * 1000),
                    *((4, one) for one in stats(values)),
                ]
            )
            for label, start, duration, values in events
        ]
        encoded.append(pack([(2, title), *((4, one) for one in packed)]))
    plane = stats(own)
    return pack(
        [
            (2, name),
            *((3, line) for line in encoded),
            *((4, _entry(label, number)) for label, number in names.items()),
            *((5, _entry(key, number)) for key, number in keys.items()),
            *((6, one) for one in plane),
        ]
    )


def _entry(name, number):
    return pack([(1, number), (2, pack([(1, number), (2, name)]))])


def training(workers=2, steps=8, slow=0, cause="none", delay=10.0, seed=0, first=True):
    """Return traces of workers that train together, one of which is slower: {name: XSpace}. Each
    step waits for input for 1 ms, computes for 5 ms and has an all-reduce that ends 2 ms after the
    last worker starts it."""
    rng = random.Random(seed)
    clocks = [rng.uniform(0, 0.3) for _ in range(workers)]
    python = [[] for _ in range(workers)]
    pool = [[] for _ in range(workers)]
    for step in range(steps):
        ready = []
        for w in range(workers):
            at, late = clocks[w], delay if w == slow else 0.0
            noise = rng.uniform(0.0, 0.4)
            taken = 1 + (late if cause == "input" else 0) + noise
            python[w].append(event("meshflow:input", at, taken))
            at += taken
            if cause == "callback" and late:
                python[w].append(event("meshflow:callback/Logger", at, late))
                at += late
            if cause == "python":
                at += late
            begin = at
            if (first and step == 0) or (cause == "compile" and late):
                span = 50 if step == 0 and first else late
                python[w].append(event("backend_compile_and_load", at + 0.1, span - 0.1))
                at += span
            at += 0.2
            compute = 5 + (late if cause == "compute" else 0) + rng.uniform(0, 0.4)
            known = {"hlo_module": "jit_train_step", "device_ordinal": 0, "run_id": step}
            pool[w].append(event("ffi_call.1", at, compute, hlo_op="ffi_call.1", **known))
            ready.append((begin, at + compute, known))
        end = max(r[1] for r in ready) + 2 + (delay if cause == "communication" else 0)
        for w, (begin, reached, known) in enumerate(ready):
            name = "all-reduce.3"
            pool[w].append(event(name, reached, end - reached, hlo_op=name, **known))
            python[w].append(event("PjitFunction(train_step)", begin, end - begin))
            python[w].append(event("train", begin, end - begin, step_num=step, _r=1))
            clocks[w] = end + rng.uniform(0, 0.1)
    return {
        f"worker{w}": space({"/host:CPU": {"python": python[w], "tf_XLAEigen/1": pool[w]}})
        for w in range(workers)
    }


def closures(workers=3, steps=12, slow=0, cause="none", delay=10.0, seed=0, threads=2):
    """Return traces of a parameter server's workers, which do not wait for each other: {name:
    XSpace}. Each closure reads its input for 1 ms, computes for 4 ms, and exchanges values for 2
    ms; then the worker waits for work for 1 ms.

    Its threads alternate: while one exchanges, another waits.
    """
    rng = random.Random(seed)
    found = {}
    for w in range(workers):
        lines = [[] for _ in range(threads)]
        pool, at, free = [], rng.uniform(0, 3), [0.0] * threads
        for step in range(steps):
            late = {cause: delay if w == slow else 0.0}
            line = lines[step % threads]
            begin, waited = at, 1 + rng.uniform(0, 0.3)
            line.append(
                event("meshflow:waiting", free[step % threads], begin - free[step % threads])
            )
            taken = 1 + rng.uniform(0, 0.3) + late.get("input", 0)
            line.append(event("meshflow:input", at, taken))
            at += taken
            if late.get("compile"):
                line.append(event("backend_compile_and_load", at, late["compile"]))
            at += late.get("compile", 0) + late.get("python", 0)
            taken = 4 + rng.uniform(0, 0.3) + late.get("compute", 0)
            known = {"hlo_module": "jit_closure", "device_ordinal": 0, "run_id": step}
            pool.append(event("ffi_call.1", at, taken, hlo_op="ffi_call.1", **known))
            at += taken
            number = step * workers + w
            line.append(event("closure", begin, at - begin, step_num=number, _r=1))
            taken = 2 + rng.uniform(0, 0.3) + late.get("communication", 0)
            line.append(event("meshflow:communication/exchange", at, taken))
            at += taken
            free[step % threads] = at
            at += waited
        planes = {f"closures {n}": line for n, line in enumerate(lines)}
        found[f"worker{w}"] = space({"/host:CPU": {**planes, "tf_XLAEigen/1": pool}})
    return found


def write(folder, traces, **descriptions):
    """Write traces as a profile in a log folder; return the profile's folder."""
    import json

    place = folder / "plugins" / "profile" / "2026_01_02_03_04_05"
    place.mkdir(parents=True, exist_ok=True)
    for name, content in traces.items():
        (place / f"{name}.xplane.pb").write_bytes(content)
        if name in descriptions:
            (place / f"{name}.meshflow.json").write_text(json.dumps(descriptions[name]))
    return place
