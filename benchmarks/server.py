"""A real `helios serve` process around the tiny model, for measurements of everything but the model.

It runs on the CPU without compilation, so that it is up in seconds.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

COMMAND = ("-m", "helios", "serve", "--model", "tiny", "--device", "cpu", "--no-compile", "--port", "0")
START_SECONDS = 120
STOP_SECONDS = 15


@contextmanager
def running_server(*flags: str) -> Iterator[str]:
    """Its URL, once it is ready. flags: more of `helios serve`. Raises RuntimeError with its log if it does not start."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HELIOS_")}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, *COMMAND, *flags], stdout=log, stderr=subprocess.STDOUT, env=environment
        )
        try:
            yield _wait_for_url(process, log)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for_url(process: subprocess.Popen, log) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        text = os.pread(log.fileno(), 2**20, 0).decode()  # leaves the position that the process writes at
        ready = re.search(r"Ready: .* at (http://\S+)", text)
        if ready is not None:
            return ready[1]
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with exit code {process.returncode}:\n{text}")
        time.sleep(0.05)
    raise RuntimeError(f"the server was not ready after {START_SECONDS} s:\n{text}")
