"""Start-up: from a configuration to a runner whose every bucket is compiled, captured and sealed, phase by phase.

On a GPU the graphs are captured twice: once against a pool of two pages to measure what they cost, and again against the
pool that takes the memory they leave.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from capture.audit import Audit
from capture.compiler import CompiledStep
from capture.graphs import GraphSet, capture_order
from capture.ladder import Ladder, default_ladder
from helios.cache.pool import KVPool, PoolShape
from helios.config import ConfigError, EngineConfig
from helios.engine.artefacts import Artefacts, key_parts, open_artefacts
from helios.engine.buffers import StepBuffers
from helios.engine.memory import GIB, MemoryPlan, plan_pages, read_device_memory
from helios.engine.messages import Progress
from helios.engine.runner import ModelRunner
from helios.engine.step import Step, varying_dimensions
from helios.model.config import ModelConfig
from helios.model.decoder import Backend, Decoder
from helios.model.hub import ModelFiles, resolve
from helios.model.rope import rope_table
from helios.model.vocabulary import vocabulary_size
from helios.model.weights import (
    check_device_memory,
    checkpoint_bytes,
    free_device_memory,
    load_weights,
    resolve_dtype,
)

logger = logging.getLogger(__name__)

CPU_DENSITY = 1  # of default ladders, see capture.ladder
GPU_DENSITY = 3  # the least that keeps padding under a tenth: reports/ladder.md
INDUCTOR_OPTIONS = {"assert_indirect_indexing": False}  # an assert a write costs more than the write


@dataclass(frozen=True)
class Sizes:
    """What the configuration left open, decided for the device and the model."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    page_size: int

    @classmethod
    def decide(cls, config: EngineConfig, model: ModelConfig, device: torch.device) -> Sizes:
        """Raises ConfigError where max_model_len is beyond what the model was made for."""
        cuda = device.type == "cuda"
        longest = config.max_model_len or model.max_model_len
        if longest > model.max_model_len:
            raise ConfigError(
                f"max_model_len must be at most {model.max_model_len}, the context of this model, got {longest}"
            )
        return cls(
            max_num_seqs=config.max_num_seqs or (256 if cuda else 16),
            max_num_batched_tokens=config.max_num_batched_tokens or (4096 if cuda else 256),
            max_model_len=longest,
            page_size=config.page_size or (64 if cuda else 16),
        )


@dataclass
class Phases:
    """Tells the outside what start-up is doing, and keeps the seconds of each phase."""

    report: Callable[[Progress], None]
    audit: Audit
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[Callable[[int, int], None]]:
        """Yields a callable that takes done and total."""
        self.report(Progress(name))
        began = time.perf_counter()
        with self.audit.phase(name):
            yield lambda done, total: self.report(Progress(name, done, total))
        self.seconds[name] = round(time.perf_counter() - began, 3)
        self.report(Progress(name, seconds=self.seconds[name]))
        logger.debug("%-16s %7.2f s", name, self.seconds[name])


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
    device = choose_device(config.device)
    context_bytes = 0
    if device.type == "cuda":
        torch.cuda.set_device(device)
        context_bytes = _create_context(device)

    with phases.phase("resolve model"):
        files = resolve(config.model, config.revision, weights=config.load_format != "dummy")
        model = ModelConfig.from_folder(files.path)
        vocab = vocabulary_size(files.path, model)
        dtype = resolve_dtype(config.dtype, model, device)
        sizes = Sizes.decide(config, model, device)
        ladder = make_ladder(config, sizes, device)
        check_device_memory(
            checkpoint_bytes(model, dtype), free_device_memory(device), config.weight_headroom_ratio
        )

    artefacts = None
    if device.type == "cuda" or (config.compile and config.compile_backend == "inductor"):
        with phases.phase("find artefacts"):
            parts = key_parts(config, model, ladder, sizes.page_size, dtype, device)
            artefacts = open_artefacts(Path(config.cache_dir), parts)
            logger.info("compiled artefacts in %s: %s", artefacts.folder, artefacts.why)

    with phases.phase("load weights") as each:
        decoder = make_decoder(model, dtype, device, sizes.max_model_len)
        load_weights(
            decoder, model, files.path, load_format=config.load_format, seed=config.seed, progress=each
        )

    shape = PoolShape(model.num_layers, sizes.page_size, model.num_kv_heads, model.head_dim, dtype.itemsize)
    runner = make_runner(config, audit, decoder, ladder, sizes, device, vocab, count_nodes)
    weights = sum(p.numel() * p.element_size() for p in decoder.parameters())
    runner.pool = KVPool(shape, 2, dtype, device)
    audit.watch(runner.pool.by_name(), unbacked=(0,))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with phases.phase("compile") as each:
        compile_buckets(runner, audit, artefacts, each)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            activations = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
        else:
            activations = 0
    if config.compile_diagnostics:
        for event in audit.events():
            logger.info("%s; %s", event, event.compilation or event.advice)
    memory, graphs = None, 0
    if device.type == "cuda":
        with phases.phase("measure graphs") as each:
            before = torch.cuda.mem_get_info(device)[0]
            runner.capture_all(audit, each)
            graphs = max(before - torch.cuda.mem_get_info(device)[0], 0) if runner.graphs else 0
            memory = read_device_memory(device, context_bytes + graphs - _graph_pool_bytes(runner))
    pages = plan_pages(
        shape,
        memory,
        gpu_memory_utilization=config.gpu_memory_utilization,
        headroom_ratio=config.kv_cache_headroom_ratio,
        kv_cache_memory=config.kv_cache_memory,
        num_pages=config.num_pages,
    )
    if runner.graphs is not None:
        runner.graphs.clear()
    runner.pool = KVPool(shape, pages, dtype, device)
    if runner.graphs is not None:
        with phases.phase("capture graphs") as each:
            runner.capture_all(audit, each)
    else:
        with phases.phase("warm up"):
            for bucket in capture_order(ladder):
                runner.warm_up(bucket, audit)
    audit.tag = ("", None)
    audit.watch(runner.watched)
    runner.step.seal(strict=config.strict_capture)
    audit.seal()
    ladder.reset()
    if artefacts is not None:
        artefacts.keep()

    tokens = (pages - 1) * sizes.page_size
    plan = MemoryPlan(
        weights=weights,
        graphs=graphs,
        activations=activations,
        pool=pages * shape.page_bytes,
        num_pages=pages,
        page_size=sizes.page_size,
        tokens=tokens,
        full_requests=tokens / sizes.max_model_len,
    )
    for line in plan.lines():
        logger.info("%s", line)
    if plan.full_requests < 1:
        logger.warning(
            "the KV pool holds %d tokens, fewer than max_model_len %d: longer requests will be refused",
            tokens,
            sizes.max_model_len,
        )
    return Started(files, model, dtype, vocab, sizes, runner, plan, artefacts, phases.seconds)


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
        if artefacts is None or not artefacts.warm:
            raise
        first_line = str(error).strip().partition("\n")[0]
        artefacts.discard(f"{type(error).__name__}: {first_line}")
        torch.compiler.reset()
        runner.step.restart()
        compile_buckets(runner, audit, artefacts, each)


def choose_device(wanted: str) -> torch.device:
    """Raises ConfigError where CUDA is asked for and absent."""
    available = torch.cuda.is_available()
    if wanted == "auto":
        wanted = "cuda" if available else "cpu"
    device = torch.device("cuda:0" if wanted == "cuda" else wanted)  # torch.cuda.set_device wants an index
    if device.type == "cuda" and (not available or (device.index or 0) >= torch.cuda.device_count()):
        raise ConfigError(
            f"device is {wanted}, but PyTorch sees {torch.cuda.device_count() if available else 0} CUDA devices; "
            f"use device cpu, or check the driver with nvidia-smi"
        )
    return device


def make_ladder(config: EngineConfig, sizes: Sizes, device: torch.device) -> Ladder:
    """Raises ConfigError where the configured buckets are beyond the engine's sizes."""
    try:
        return default_ladder(
            sizes.max_num_seqs,
            max(sizes.max_num_batched_tokens, sizes.max_num_seqs + 1),
            decode=config.decode_buckets,
            packed=config.packed_buckets,
            density=GPU_DENSITY if device.type == "cuda" else CPU_DENSITY,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def make_decoder(model: ModelConfig, dtype: torch.dtype, device: torch.device, max_model_len: int) -> Decoder:
    """A decoder on its device with uninitialised parameters."""
    backend = Backend.for_device(device)
    rope = rope_table(model.rope, model.head_dim, max_model_len, device)
    with torch.device("meta"):
        decoder = Decoder(model, torch.empty(0), backend).to(dtype)
    decoder.to_empty(device=device)
    if model.tie_word_embeddings:
        decoder.head.weight = decoder.embed.weight
    decoder.rope = rope
    return decoder.eval()


def make_runner(
    config: EngineConfig,
    audit: Audit,
    decoder: Decoder,
    ladder: Ladder,
    sizes: Sizes,
    device: torch.device,
    vocab: int,
    count_nodes: bool,
) -> ModelRunner:
    cuda = device.type == "cuda"
    inductor = config.compile_backend == "inductor"
    step = CompiledStep(
        Step(decoder, vocab, sampler="triton" if cuda else "reference"),
        backend=config.compile_backend,
        fullgraph=config.compile_fullgraph,
        options=INDUCTOR_OPTIONS if inductor else None,
        unbacked=varying_dimensions(decoder.config.num_layers),
        skip_module_guards=True,
        compile=config.compile,
        listener=audit if config.compile else None,  # asked for, an eager tick is no news
    )
    buffers = StepBuffers(
        ladder.buckets,
        max_rows=sizes.max_num_seqs,
        max_model_len=sizes.max_model_len,
        page_size=sizes.page_size,
        device=device,
        seed=config.seed,
    )
    graphs = None
    if cuda and config.compile and config.cuda_graphs:
        graphs = GraphSet(device, warmup=1, count_nodes=count_nodes)
    return ModelRunner(step, ladder, buffers, device, graphs)


def _create_context(device: torch.device) -> int:
    """Initialises CUDA; returns the bytes that its context took."""
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info(device)
    torch.zeros(1, device=device)
    after = torch.cuda.mem_get_info(device)[0]
    logger.info("%s: %.1f GiB, %.1f GiB free", torch.cuda.get_device_name(device), total / GIB, free / GIB)
    return max(free - after, 0)


def _graph_pool_bytes(runner: ModelRunner) -> int:
    """What the caching allocator already counts of the graphs' memory."""
    return runner.graphs.pool_bytes if runner.graphs is not None else 0
