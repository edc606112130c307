"""Placement: a plan that names the backend of each node, chosen by preference, by estimates or by measurement.

`policy` has what a user may request, and the interface of own policies; `lowering/strategies.py` carries them out.
`placer` measures the plans of one method, `parts` cuts them, `runtime` runs programs and needs no torch.
`program_placement` places all methods, `lock` stores the result. `delegate.cache` has its caches.
"""
