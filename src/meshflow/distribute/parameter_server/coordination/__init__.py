"""Coordinator: queue, dispatch, and progress reports of closures."""
