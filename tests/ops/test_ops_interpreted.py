"""The Triton kernels on a CPU, through Triton's interpreter: the same source that a GPU compiles, judged by the references."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("interpreted.py")


def test_kernels_are_what_their_references_are():
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
