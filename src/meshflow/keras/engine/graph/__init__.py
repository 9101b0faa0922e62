"""Functional models as graphs: input layers, nodes, ops as layers."""
