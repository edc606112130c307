"""Placement: a plan that names the backend of each node, chosen by preference, by estimates or by measurement.

A value of `to_backend(placement=...)` is a `strategy`: by preference, `estimated`, `measured`,
`locked` (as in a `lock`), or an own `policy`. Measured placement: `schemes` has the quantized programs, `placer`
measures one method, whose plans `parts` cuts. `runtime` runs programs and needs no torch. `delegate.cache` has the
caches.
"""
