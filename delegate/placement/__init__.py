"""Placement by measurement: choose the plan of a method by what its candidates cost on this machine.

Plans: `single_backend_plans` compiles one plan per candidate. `cross_backend_plans` combines candidates segment by
segment, and `parallel_plans` runs branches in parallel. `segments` splits a method, `branches` finds its branches, and
`compose` builds the combined plans.

Measurement: `trials` runs each program in a process of its own (`worker`). `elimination` measures rounds until the
fastest program is known, `noise_filter` drops disturbed rounds, and `survey` measures the cost of segments.

Choice: `policy` drives the search of one method, with the shared state in `search` and `search_state`.
`program_placement` places all methods of a program, and `cache` stores results between processes.

Remote measurement: `remote_placement` writes a `bundle`, which `bundle_measurement` measures on another machine.
The results (`remote_costs`) then take the place of local measurements. `accuracy_check` compares results on both.
"""
