"""How fast Helios is: pytest-benchmark suites (test_bench_*.py) and programs that measure a whole engine or server.

uv run pytest benchmarks --benchmark-only --benchmark-json reports/benchmarks-cpu.json
python -m benchmarks.plot reports/benchmarks-cpu.json
python -m benchmarks.host          host time of a tick            -> reports/host-tick.json
python -m benchmarks.offline       one engine, many prompts       -> reports/<device>-offline.json
python -m benchmarks.load          requests to a running server   -> a table, and JSON with --out
"""
