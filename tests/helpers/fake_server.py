"""A server process around a scripted engine, for tests of signals: python -m helpers.fake_server DRAIN_SECONDS TOKENS.

Prints its URL once it listens, and ends with the server's exit code.
"""

from __future__ import annotations

import asyncio
import sys

from helpers.serving import MODEL, FakeEngine

from helios.config import ServerConfig
from helios.model.hub import resolve
from helios.server.app import create_app
from helios.server.prompts import ModelText
from helios.server.run import DrainingServer


async def main(drain_seconds: float, tokens: int) -> int:
    engine = FakeEngine(lambda _: [[5]] * tokens, max_model_len=100_000)
    engine.pace = 0.01
    config = ServerConfig(port=0, drain_seconds=drain_seconds)
    text = ModelText.from_folder(resolve(MODEL).path)
    server = DrainingServer(create_app(engine, text, config, (MODEL,)), config)
    serving = asyncio.create_task(server.serve())
    await server.listening.wait()
    print(server.url, flush=True)
    await serving
    return server.exit_code


if __name__ == "__main__":
    sys.exit(asyncio.run(main(float(sys.argv[1]), int(sys.argv[2]))))
