"""helios serve: the HTTP server."""

from __future__ import annotations

import argparse
from typing import Any

from helios.bytecode import keep_bytecode
from helios.commands.common import add_engine_flags, command_parser, given_engine_flags
from helios.config import EngineConfig, ServerConfig
from helios.options import add_flags, given_flags

EXAMPLES = """\
  helios serve
      the bundled tiny model on http://127.0.0.1:8000, on any machine
  helios serve --model Qwen/Qwen3-4B --host 0.0.0.0 --port 9000
      a model of the Hugging Face hub, reachable from other machines
  helios serve --model ./my-qwen --max-model-len 8192 --gpu-memory-utilization 0.8
      a folder with config.json, tokenizer.json and safetensors files
  HELIOS_API_KEY=secret helios serve --no-thinking --default-max-tokens 0
      clients need the key; answers without thinking, as long as the context allows

then, from another terminal:
  helios chat --url http://127.0.0.1:8000
  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "Hello!"}], "stream": true}'

Every flag is also a HELIOS_* variable, named in its help; a .env file in the working folder is read too.
Flags win over variables, and variables over .env.
"""


def add_parser(subparsers: Any) -> None:
    parser = command_parser(subparsers, "serve", "serve a model over an OpenAI-compatible HTTP API", EXAMPLES)
    add_engine_flags(parser, serving=True)
    add_flags(parser, ServerConfig, "server")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    engine = EngineConfig.from_env(**given_engine_flags(args))
    server = ServerConfig.from_env(**given_flags(args, ServerConfig))
    bytecode = keep_bytecode(engine.cache_dir)
    from helios.display import StartupDisplay
    from helios.server.run import serve

    if bytecode is not None:
        bytecode.note()
    with StartupDisplay() as display:
        return serve(engine, server, on_progress=display)
