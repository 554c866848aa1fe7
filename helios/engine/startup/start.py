"""Start-up: from a configuration to a runner whose every bucket is compiled, captured and sealed, phase by phase.

On a GPU the graphs are captured twice: once against a pool of two pages to measure what they cost, and again against the
pool that takes the memory they leave.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from capture.audit import Audit
from capture.compiler import CompiledStep
from capture.graphs import GraphSet, capture_order
from helios.cache.pool import KVPool
from helios.config import ConfigError, EngineConfig
from helios.engine.buffers import StepBuffers
from helios.engine.messages import Progress
from helios.engine.runner import ModelRunner
from helios.engine.startup.artefacts import Artefacts, is_full_disk, key_parts, open_artefacts
from helios.engine.startup.memory import DeviceMemory, plan_pages, read_device_memory
from helios.engine.startup.sizes import Phases, Resolved, Sizes, resolve_model
from helios.engine.state import Layout, StepState, varying_dimensions
from helios.engine.status import MemoryPlan
from helios.engine.step import ForwardStep
from helios.model.decoder import Decoder
from helios.model.hub import ModelFiles
from helios.model.layers import Backend
from helios.model.model_config import ModelConfig
from helios.model.rope import rope_table
from helios.model.weights import (
    load_weights,
)
from helios.sampler.sampler import Sampler
from helios.sampler.variant import Variant

logger = logging.getLogger(__name__)

INDUCTOR_OPTIONS = {"assert_indirect_indexing": False}  # an assert a write costs more than the write


@dataclass(frozen=True)
class Started:
    """A warm engine's parts."""

    files: ModelFiles
    model: ModelConfig
    dtype: torch.dtype
    vocab: int
    sizes: Sizes
    runner: ModelRunner
    memory: MemoryPlan
    artefacts: Artefacts | None
    phases: dict[str, float]


def start(
    config: EngineConfig, audit: Audit, report: Callable[[Progress], None], *, count_nodes: bool = False
) -> Started:
    """Loads, compiles, captures and seals. Raises ConfigError and the errors of the layers below, as sentences.

    count_nodes: as in capture.GraphSet.
    """
    phases = Phases(report, audit)
    found = resolve_model(config, phases)
    artefacts = find_artefacts(config, found, phases)
    decoder = load_decoder(config, found, phases)
    runner = make_runner(config, audit, decoder, found, count_nodes)
    runner.pool = KVPool(found.pool_shape, 2, found.dtype, found.device)
    audit.watch(runner.pool.by_name(), unbacked=(0,))
    activations = compile_step(config, runner, audit, artefacts, phases)
    graphs, memory = measure_graphs(runner, audit, found, phases)
    pages = plan_pages(
        found.pool_shape,
        memory,
        gpu_memory_utilization=config.gpu_memory_utilization,
        headroom_ratio=config.kv_cache_headroom_ratio,
        kv_cache_memory=config.kv_cache_memory,
        num_pages=config.num_pages,
    )
    capture_step(runner, audit, found, pages, phases)
    seal(config, runner, audit, artefacts)
    plan = memory_plan(decoder, found, pages, graphs=graphs, activations=activations)
    return Started(
        found.files,
        found.model,
        found.dtype,
        found.vocab,
        found.sizes,
        runner,
        plan,
        artefacts,
        phases.seconds,
    )


def find_artefacts(config: EngineConfig, found: Resolved, phases: Phases) -> Artefacts | None:
    """The folder of compiled artefacts; None where nothing is compiled that could be kept."""
    if found.device.type != "cuda" and not (config.compile and config.compile_backend == "inductor"):
        return None
    with phases.phase("find artefacts"):
        sizes = asdict(found.sizes)
        parts = key_parts(config, found.model, found.ladder, sizes, found.dtype, found.device)
        artefacts = open_artefacts(Path(config.cache_dir), parts)
        logger.info("compiled artefacts in %s: %s", artefacts.folder, artefacts.why)
    return artefacts


def load_decoder(config: EngineConfig, found: Resolved, phases: Phases) -> Decoder:
    """The decoder on its device, filled."""
    with phases.phase("load weights") as each:
        decoder = make_decoder(found.model, found.dtype, found.device, found.sizes.max_model_len)
        load_weights(
            decoder,
            found.model,
            found.files.path,
            load_format=config.load_format,
            seed=config.seed,
            progress=each,
        )
    return decoder


def compile_step(
    config: EngineConfig, runner: ModelRunner, audit: Audit, artefacts: Artefacts | None, phases: Phases
) -> int:
    """Compiles every bucket; returns the bytes that the largest one took while it ran, 0 on a CPU."""
    on_gpu = runner.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(runner.device)
    with phases.phase("compile") as each:
        compile_buckets(runner, audit, artefacts, each)
        activations = 0
        if on_gpu:
            torch.cuda.synchronize(runner.device)
            activations = torch.cuda.max_memory_allocated(runner.device) - torch.cuda.memory_allocated(
                runner.device
            )
    if config.compile_diagnostics:
        for event in audit.events():
            logger.info("%s; %s", event, event.compilation or event.advice)
    return activations


def measure_graphs(
    runner: ModelRunner, audit: Audit, found: Resolved, phases: Phases
) -> tuple[int, DeviceMemory | None]:
    """Captures everything against the small pool; returns what that cost in bytes, and what the device then holds.

    The sampler's graphs know nothing of the pool and stay; the forward's will be captured again.
    """
    if found.device.type != "cuda":
        return 0, None
    with phases.phase("measure graphs") as each:
        before = torch.cuda.mem_get_info(found.device)[0]
        runner.capture_sampling(audit)
        runner.capture_forward(audit, each)
        graphs = max(before - torch.cuda.mem_get_info(found.device)[0], 0) if runner.graphs else 0
        memory = read_device_memory(found.device, found.context_bytes + graphs - runner.graph_pool_bytes)
    return graphs, memory


def capture_step(runner: ModelRunner, audit: Audit, found: Resolved, pages: int, phases: Phases) -> None:
    """Exchanges the small pool for the real one, and captures every bucket against it, or runs each once."""
    if runner.graphs is not None:
        runner.graphs.clear()
    runner.pool = KVPool(found.pool_shape, pages, found.dtype, found.device)
    if runner.graphs is not None:
        with phases.phase("capture graphs") as each:
            runner.capture_forward(audit, each)
        return
    with phases.phase("warm up"):
        for bucket in capture_order(runner.ladder):
            runner.warm_up(bucket, audit)


def seal(config: EngineConfig, runner: ModelRunner, audit: Audit, artefacts: Artefacts | None) -> None:
    """From here on a compilation is late, and a buffer that moves is a fault."""
    audit.tag = ("", None)
    audit.watch(runner.watched)
    runner.step.seal(strict=config.strict_capture)
    audit.seal()
    if artefacts is not None:
        artefacts.keep()


def memory_plan(
    decoder: Decoder, found: Resolved, pages: int, *, graphs: int, activations: int
) -> MemoryPlan:
    """The table of who holds how much, logged."""
    tokens = (pages - 1) * found.sizes.page_size
    plan = MemoryPlan(
        weights=sum(p.numel() * p.element_size() for p in decoder.parameters()),
        graphs=graphs,
        activations=activations,
        pool=pages * found.pool_shape.page_bytes,
        num_pages=pages,
        page_size=found.sizes.page_size,
        tokens=tokens,
        full_requests=tokens / found.sizes.max_model_len,
    )
    for line in plan.lines():
        logger.info("%s", line)
    if plan.full_requests < 1:
        logger.warning(
            "the KV pool holds %d tokens, fewer than max_model_len %d: longer requests will be refused",
            tokens,
            found.sizes.max_model_len,
        )
    return plan


def compile_buckets(
    runner: ModelRunner, audit: Audit, artefacts: Artefacts | None, each: Callable[[int, int], None]
) -> None:
    """Runs every bucket once, largest first. Artefacts of an earlier start that break it are given up, and all is compiled
    anew; what fails then is raised. each: called with done and total.
    """
    order = capture_order(runner.ladder)
    try:
        for done, bucket in enumerate(order):
            each(done, len(order))
            runner.warm_up(bucket, audit)
    except Exception as error:
        if artefacts is not None and is_full_disk(error):
            raise ConfigError(
                f"the disk of {artefacts.folder} is full: free some of it, or choose another cache_dir",
                field="cache_dir",
            ) from error
        if artefacts is None or not artefacts.warm:
            raise
        first_line = str(error).strip().partition("\n")[0]
        artefacts.discard(f"{type(error).__name__}: {first_line}")
        torch.compiler.reset()
        runner.step.restart()
        compile_buckets(runner, audit, artefacts, each)


def make_decoder(model: ModelConfig, dtype: torch.dtype, device: torch.device, max_model_len: int) -> Decoder:
    """A decoder on its device with uninitialised parameters."""
    rope = rope_table(model.rope, model.head_dim, max_model_len, device)
    with torch.device("meta"):
        decoder = Decoder(model, torch.empty(0), Backend.for_device(device)).to(dtype)
    decoder.to_empty(device=device)
    decoder.tie()
    decoder.rope = rope
    return decoder.eval()


def make_runner(
    config: EngineConfig, audit: Audit, decoder: Decoder, found: Resolved, count_nodes: bool
) -> ModelRunner:
    """The runner with all its buffers, and without a pool."""
    device, sizes, buckets = found.device, found.sizes, found.ladder.buckets
    cuda = device.type == "cuda"
    step = CompiledStep(
        ForwardStep(decoder),
        backend=config.compile_backend,
        fullgraph=config.compile_fullgraph,
        options=INDUCTOR_OPTIONS if config.compile_backend == "inductor" else None,
        unbacked=varying_dimensions(found.model.num_layers),
        skip_module_guards=True,
        compile=config.compile,
        listener=audit if config.compile else None,  # asked for, an eager tick is no news
    )
    layout = Layout(
        {
            "seats": sizes.max_num_seqs + 1,
            "pages_per_seat": -(-sizes.max_model_len // sizes.page_size),
            "outputs": 1,
            "vocab": found.vocab,
            "vocab_words": -(-found.vocab // 32),
            "padded_vocab": found.model.vocab_size,
        }
    )
    state = StepState(layout, buckets, device, found.dtype)
    buffers = StepBuffers(state, buckets, page_size=sizes.page_size, seed=config.seed)
    graphs, sampling_graphs = None, {}
    if cuda and config.compile and config.cuda_graphs:
        graphs = GraphSet(device, warmup=1, count_nodes=count_nodes)
        sampling_graphs = {variant: GraphSet(device, warmup=1) for variant in Variant}
    sampler = Sampler(found.vocab, "triton" if cuda else "reference")
    return ModelRunner(step, sampler, found.ladder, buffers, device, graphs, sampling_graphs)
