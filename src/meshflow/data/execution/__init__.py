"""Execution of pipelines: gathers, chunks, maps, threads, failures and timing."""
