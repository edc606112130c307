"""The integer support of OpenVINO's CPU plugin: quantizers are built from it, and patterns are found by it.

Source: the low-precision transformations, https://docs.openvino.ai (Low Precision Transformations), and the graphs that
OpenVINO 2026.4 executes: tests/test_integers.py asserts that each row runs in integers.
"""

from __future__ import annotations

from delegate_vendor_kit.schemes import integer_operators, library_schemes

SCHEMES = library_schemes(
    products=("aten.bmm.default", "aten.matmul.default"),
    functions=("aten._adaptive_avg_pool2d.default", "aten.avg_pool2d.default"),
    group=16,
)
INTEGERS = integer_operators(SCHEMES[0])
