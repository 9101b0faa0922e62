"""Replicas in several processes: the strategy, each worker's part of the data, saving once for all.

`host_collectives` is how the processes exchange values outside of compiled programs.
"""
