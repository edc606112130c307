"""Placement: a plan that names the backend of each node, chosen by preference, by estimates or by measurement.

`policy` has what a user may request, and the interface of own policies. `strategies` returns the strategy of a request:
`strategy` (by preference, or as saved), `estimated` (with its `race`), `measured`, or `locked` (as in a `lock`).
Measured placement: `schemes` has the quantized programs, `program_placement` all methods, `placer` one method, whose
plans `parts` cuts. `runtime` runs programs and needs no torch. `delegate.cache` has the caches.
"""
