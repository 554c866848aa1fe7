"""How fast Helios is: pytest-benchmark suites (test_bench_*.py), and programs that measure a whole engine or server.

The suites, on any machine; --model and --load-format choose what to measure, HELIOS_* variables all else:
    uv run pytest benchmarks --benchmark-only --benchmark-json reports/benchmarks-cpu.json
    uv run pytest benchmarks --benchmark-only --benchmark-autosave      and later, to compare:
    uv run pytest benchmarks --benchmark-only --benchmark-compare
    python -m benchmarks.plot reports/benchmarks-cpu.json               pictures, several files in one

The programs, each `python -m benchmarks.NAME --help`:
    host       the host's time of a tick, by number of requests
    busy       the share of a steady decode that the GPU is at work
    offline    one engine: start-up, first token, decode step, prefill, throughput
    kernels    the Triton kernels by themselves
    ladder     which buckets to have, by simulated conversations: no device needed
    parity     the engine's ids against transformers
    load       many requests to a running server
    serving    `helios serve` from its start through a random load
"""
