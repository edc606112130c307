"""The defaults of each scheme over models whose sizes they do not fit well."""

from __future__ import annotations

import pytest

from tests.support.unfortunate_sizes import cases, check_defaults


@pytest.mark.parametrize(("scheme", "name"), cases("openvino"))
def test_no_default_refuses(scheme: str, name: str) -> None:
    check_defaults("openvino", scheme, name)
