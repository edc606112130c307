"""Placement: a plan that names the backend of each node, chosen by preference or by measurement.

`requests` has what a user may request. `policy` drives the search of one method: `single_backend_plans`,
`cross_backend_plans` and `parallel_plans` compile candidates, `survey` measures segments. `runtime` measures programs
and needs no torch. `program_placement` places all methods, `lock` and `cache` store the results.
"""
