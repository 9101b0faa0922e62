"""Mutable cells: variables, modules that own them, random generators, updates of parts."""
