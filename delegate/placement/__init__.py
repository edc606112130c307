"""Placement: a plan that names the backend of each node, chosen by preference or by measurement.

`policy` has what a user may request, and the interface of own policies; `lowering/strategies.py` carries them out.
`placer` drives the search of one method: `competing_plans` compiles plans of one or several candidates, `survey`
measures segments. `runtime` measures programs and needs no torch. `program_placement` places all methods, `lock` stores
the result. `delegate.cache` has its caches.
"""
