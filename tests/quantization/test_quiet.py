"""What torchao has to say of its libraries for GPUs is kept back, and nothing of ours is."""

from __future__ import annotations

import subprocess
import sys


def test_nothing_is_said_at_import():
    code = "import logging, delegate.quantization; logging.getLogger('torchao').warning('of ours')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "of ours"
