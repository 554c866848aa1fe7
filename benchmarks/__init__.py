"""How fast Helios is: pytest-benchmark suites (test_bench_*.py) and programs that measure a whole engine or server.

uv run pytest benchmarks --benchmark-only --benchmark-json reports/benchmarks-cpu.json
uv run pytest benchmarks --benchmark-only --model Qwen/Qwen3-4B --load-format dummy      on a GPU
uv run pytest benchmarks --benchmark-only --benchmark-autosave                           to compare with later:
uv run pytest benchmarks --benchmark-only --benchmark-compare
python -m benchmarks.plot reports/benchmarks-cpu.json     pictures, of several files in one
python -m benchmarks.host          the host's time of a tick      -> reports/host-tick.json
python -m benchmarks.offline       one engine, many prompts       -> reports/<device>-offline.json
python -m benchmarks.busy          the GPU's share of a decode    -> reports/<device>-busy.json
python -m benchmarks.load          requests to a running server   -> a table, and JSON with --out
"""
