"""Placement by measuring: plans that are made of what candidates cost on this machine.

`stretches` cuts a method where it is narrow; `composing` makes plans of the candidates' own; `trials` runs programs in
processes of their own (`worker`), in turns (`racing`); `survey` measures stretches; `choice` finds the cheapest ways
through them by dynamic programming. `policy` is the way through all that, and `plans` has its words: `alone`, `mixing`
and `together` make the plans that race, of one candidate, of several, and with branches at the same time; `search` is
what they share. `kept` has what was measured outlast the process; `placing` does it for all methods of a program, as a
configuration asks.

For another machine `replaying` writes a `bundle` here, which `visiting` measures there, and takes what was found there
(`elsewhere`) for measured here; `judging` looks at results on both.
"""
