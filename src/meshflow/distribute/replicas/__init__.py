"""Replicas as one program: their values, collectives, contexts and variables.

From the ground up: `values`, `collectives` and `shares` (what a part of a batch knows of the whole),
`context` (what a replica sees), `variables`, then `spmd` (`Strategy.run`) and `reductions_and_gathers`.
"""
