"""Messages of torchao about its GPU libraries are suppressed; messages of this project are not."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.extended
def test_import_prints_nothing():
    code = "import logging, delegate.quantization; logging.getLogger('torchao').warning('of ours')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "of ours"
