"""Costs: the seconds that a machine takes for nodes, calls and transfers, from its profile; see `profile`.

`quantities` sorts operators by what their time depends on. `estimates` turns a profile into costs of a graph's nodes.
"""
