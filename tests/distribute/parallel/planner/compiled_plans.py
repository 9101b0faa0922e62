"""Compile plans of a small language model for virtual devices; print theory and measurements as
JSON. Arguments: the number of plans for eight devices, and "experts" for a model with experts; or
an objective and the number of devices for the best plan; or "models" and names of models, for the
best plan of each with little memory; or "further" for certain plans of more models.

This is a separate program because the number of devices of a process is fixed. Run by
test_compiled_plans.py.
"""

import json
import os
import random
import sys

os.environ.setdefault("NPROC", "32")
os.environ["MESHFLOW_CACHE_DIR"] = ""

import jax

jax.config.update("jax_platforms", "cpu")
MANY = len(sys.argv) > 2 and sys.argv[2].isdigit()
jax.config.update("jax_num_cpu_devices", int(sys.argv[2]) if MANY else 8)

import meshflow as tf
from distribute.parallel.planner.models import FURTHER, TWELVE, gpt, tokens
from meshflow.core.variables.variable_creation import shapes_only
from meshflow.distribute.parallel.planner.choices import PlanChoice, enumerate_choices, find_refusal
from meshflow.distribute.parallel.planner.costs import CostModel
from meshflow.distribute.parallel.planner.hardware import Hardware
from meshflow.distribute.parallel.planner.model_profile import profile_model
from meshflow.distribute.parallel.planner.plans import create_strategy, estimate_plan
from meshflow.distribute.parallel.planner.trial import compile_trial

BATCH, LENGTH, DEVICES = 64, 16, 8


def compare(count, experts=0):
    """Plans of one and four micro-batches without offloading, in an order of chance."""
    model, batch = gpt(2, 64, 4, LENGTH, 128, experts), (*tokens(BATCH, LENGTH), None)
    with shapes_only():
        profile = profile_model(model._make_loss_program(), batch, model.optimizer)
        costs = CostModel(profile, Hardware(DEVICES, "1TB"))
        kept = [
            c
            for c in enumerate_choices(profile, DEVICES)
            if find_refusal(c, profile) is None and not c.offload and c.micro_batches in (1, 4)
        ]
        if experts:
            kept = [c for c in kept if c.experts]
        random.Random(0).shuffle(kept)
        best = {}
        for objective in ("bytes", "memory"):
            plan = estimate_plan(profile, Hardware(DEVICES, "1TB"), objective)
            among = [c.choice for c in plan.candidates if c.choice in kept]
            best[objective] = [str(c) for c in among[:3]]
            # The planner's own are compiled in any case.
            kept = [*among[:3], *(c for c in kept if c not in among[:3])]
        found = []
        for choice in kept[:count]:
            estimate, trial = (
                costs.estimate(choice),
                compile_trial(model, batch, create_strategy(choice)),
            )
            pairs = {
                "memory": [estimate.memory, trial.memory],
                "sent": [estimate.bytes, trial.sent],
            }
            found.append({"choice": str(choice), **pairs})
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    return {"plans": found, "best": best}


def best_of_many(devices, objective):
    """The best plan for many devices, compiled."""
    model, batch = gpt(4, 64, 4, LENGTH, 128), tokens(2 * devices, LENGTH)
    with shapes_only():
        plan = tf.distribute.plan(
            model, *batch, hardware=Hardware(devices, "1TB"), objective=objective, compiled=1
        )
    # Offloaded values are in the host's memory, which is the memory of CPU devices.
    best = next(c for c in plan.candidates if not c.choice.offload)
    trial = best.trial or compile_trial(model, batch, create_strategy(best.choice))
    pairs = {
        "memory": [best.estimate.memory, trial.memory],
        "sent": [best.estimate.bytes, trial.sent],
    }
    return {"choice": str(best.choice), **pairs}


def best_of_models(names):
    """Compile the planner's choice for each model, on devices with 60 % of the memory of full
    copies."""
    for name in names or TWELVE:
        tf.keras.backend.clear_session()
        with shapes_only():
            model, batch = TWELVE[name]()
            profile = profile_model(model._make_loss_program(), (*batch, None), model.optimizer)
            copies = CostModel(profile, Hardware(DEVICES, "1TB")).estimate(PlanChoice(DEVICES))
            hardware = Hardware(
                DEVICES, int(0.6 * copies.memory), margin=0, products=1e10, link=1e9
            )
            plan = estimate_plan(profile, hardware)
            # Offloaded values are in the host's memory, which is the memory of CPU devices.
            best = next(c for c in plan.candidates if not c.choice.offload)
            trial = compile_trial(model, (*batch, None), create_strategy(best.choice))
        pairs = {"memory": [best.memory, trial.memory], "sent": [best.bytes, trial.sent]}
        print(json.dumps([name, str(best.choice), pairs]), flush=True)


def further_plans():
    """Compile certain plans."""
    for name, (make, choices) in FURTHER.items():
        tf.keras.backend.clear_session()
        with shapes_only():
            model, batch = make()
            profile = profile_model(model._make_loss_program(), (*batch, None), model.optimizer)
            costs = CostModel(profile, Hardware(DEVICES, "1TB"))
            known = {str(c): c for c in enumerate_choices(profile, DEVICES)}
            for choice in choices:
                estimate = costs.estimate(known[choice])
                trial = compile_trial(model, (*batch, None), create_strategy(known[choice]))
                pairs = {
                    "memory": [estimate.memory, trial.memory],
                    "sent": [estimate.bytes, trial.sent],
                }
                print(json.dumps([name, choice, pairs]), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "further":
        further_plans()
    elif sys.argv[1] == "models":
        best_of_models(sys.argv[2:])
    elif MANY:
        print(json.dumps(best_of_many(int(sys.argv[2]), sys.argv[1])))
    else:
        print(json.dumps(compare(int(sys.argv[1]), 8 if "experts" in sys.argv else 0)))
