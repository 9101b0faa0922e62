"""Execution of pipelines: gathering rows, chunks, compiled and host-side maps, threads, failures and
timing.
"""
