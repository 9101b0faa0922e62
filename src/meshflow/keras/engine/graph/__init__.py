"""Graphs of Functional models: input layers, nodes, and ops as layers."""
