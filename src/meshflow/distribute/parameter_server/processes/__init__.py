"""Entry point and services of processes that are servers or workers."""
