"""Replicas in several processes: the strategy, its datasets, and checkpoints.

`host_collectives` exchanges values between the processes outside of compiled programs.
"""
