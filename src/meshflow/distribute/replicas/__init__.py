"""Replicas as one program: values, collectives, contexts and variables.

Modules from the bottom up: `values`, `collectives` and `shares` (parts of a batch), `context` (the
context of a replica), `variables`, then `spmd` (`Strategy.run`) and `reductions_and_gathers`.
"""
