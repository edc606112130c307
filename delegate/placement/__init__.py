"""Placement by measuring: plans that are made of what candidates cost on this machine.

`stretches` cuts a method where it is narrow; `composing` makes plans of the candidates' own; `trials` runs programs in
processes of their own, in turns; `choice` finds the cheapest plans by dynamic programming; `racing` compares whole
plans until the difference is known; `policy` is the way through them; `kept` has what was measured outlast the process.
"""
