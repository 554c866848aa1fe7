"""Compiles one step for every bucket: `CompiledStep` wraps a callable so that one artefact serves all shapes.

Once sealed, a strict step raises `LateCompilationError` where it would have to be compiled again; a lenient one
compiles, and leaves it to an `Audit` to count and log that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any, Protocol

import torch
from torch._dynamo import config as dynamo_config
from torch._dynamo.decorators import mark_unbacked

Unbacked = Mapping[int | str, Mapping[int, str]]
"""Argument position or keyword -> {dimension: name}. Dimensions that share a name always have the same size."""


LENIENT_RECOMPILES = 256
"""A lenient seal lets a step be compiled this often: late compilations must slow a service down, not end it."""


class StepListener(Protocol):
    """What a step tells its audit: the part of `capture.audit.Audit` that it needs."""

    def eager_step(self, function: str) -> None: ...

    def refused(self, function: str, message: str) -> None: ...


class LateCompilationError(RuntimeError):
    """A sealed step met inputs that no compiled artefact accepts. `reasons` are the guards that failed."""

    def __init__(self, function: str, reasons: tuple[str, ...]) -> None:
        self.reasons = reasons
        why = (
            "; ".join(re.sub(r"\s+", " ", reason) for reason in reasons)
            or "it was never compiled before the seal"
        )
        super().__init__(
            f"The sealed step {function} would have to be compiled again: {why}. "
            "Run these inputs once before sealing, or make them equal to the ones that were compiled."
        )


class CompiledStep:
    """A callable compiled once for all its shapes.

    function: the step; a module or any callable on tensors.
    backend, fullgraph, options: as in torch.compile. `options` are the backend's own.
    unbacked: the dimensions that vary from bucket to bucket (tokens, rows). They are marked on the arguments of
        the first call, which gives one artefact for all sizes, 1 included. Names must match `function`'s
        arguments as they are passed.
    specialize: compile each shape on its own instead; `unbacked` must then be empty.
    shapes: how many distinct shapes a specialised step may meet (sets the recompile limit).
    skip_module_guards: drop the guards on modules and their attributes, about half the cost of a call. Right
        where nothing changes the module after the first call except `copy_` into its tensors.
    compile: False runs the function as it is; every such call is reported as eager.
    listener: told about eager calls and refusals; an `Audit`.

    Raises ValueError for contradictory settings, and at the first call if `unbacked` names an absent argument.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        backend: str | Callable[..., Any] = "inductor",
        fullgraph: bool = True,
        options: Mapping[str, Any] | None = None,
        unbacked: Unbacked | None = None,
        specialize: bool = False,
        shapes: int = 1,
        skip_module_guards: bool = False,
        compile: bool = True,
        listener: StepListener | None = None,
    ) -> None:
        if specialize and unbacked:
            raise ValueError("A step is specialised per shape or has unbacked dimensions, not both.")
        if shapes < 1:
            raise ValueError(f"A step meets at least one shape, but shapes is {shapes}.")
        self.function = function
        self.name = getattr(function, "__qualname__", type(function).__qualname__)
        self.calls = 0
        self.eager_calls = 0
        self.sealed = False
        self.compile = compile
        self._unbacked: Unbacked = unbacked or {}
        self._listener = listener
        if not compile:
            self._run: Callable[..., Any] = self._run_eager
            return
        settings = dict(options or {})
        if skip_module_guards:
            settings["guard_filter_fn"] = torch.compiler.skip_guard_on_all_nn_modules_unsafe
        allow_recompiles(shapes)
        self._compiled = torch.compile(
            with_own_code(function),
            backend=backend,
            fullgraph=fullgraph,
            dynamic=False,
            options=settings or None,
        )
        self._run = self._run_first

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the step. Raises LateCompilationError if sealed strictly and the inputs are new."""
        self.calls += 1
        return self._run(*args, **kwargs)

    def seal(self, strict: bool) -> None:
        """Marks the end of warm-up. strict: a later compilation raises; otherwise it happens and is audited."""
        self.sealed = True
        if not self.compile:
            return
        if strict:
            # The constructor sets the stance at once; it is put back until a call enters it.
            self._stance = torch.compiler.set_stance("fail_on_recompile")
            self._stance.__exit__(None, None, None)
        else:
            allow_recompiles(LENIENT_RECOMPILES)
        self._run = self._run_strict if strict else self._compiled

    def unseal(self) -> None:
        """Allows compilations again; the artefacts stay."""
        self.sealed = False
        if self.compile:
            self._run = self._compiled if self.calls else self._run_first

    def restart(self) -> None:
        """Compiles anew at the next call, as at the first: for after torch.compiler.reset()."""
        self.sealed = False
        if self.compile:
            self._run = self._run_first

    def _run_eager(self, *args: Any, **kwargs: Any) -> Any:
        self.eager_calls += 1
        if self._listener is not None:
            self._listener.eager_step(self.name)
        return self.function(*args, **kwargs)

    def _run_first(self, *args: Any, **kwargs: Any) -> Any:
        for key, dimensions in self._unbacked.items():
            try:
                tensor = args[key] if isinstance(key, int) else kwargs[key]
            except (IndexError, KeyError):
                raise ValueError(
                    f"unbacked names argument {key!r}, which {self.name} was not called with: "
                    f"{len(args)} positional arguments and keywords {sorted(kwargs)}."
                ) from None
            for dimension, shape_id in dimensions.items():
                mark_unbacked(tensor, dimension, shape_id=shape_id)
        result = self._compiled(*args, **kwargs)
        self._run = self._compiled
        return result

    def _run_strict(self, *args: Any, **kwargs: Any) -> Any:
        # The stance is process-wide while it holds, so it is held for this call alone.
        try:
            with self._stance:
                return self._compiled(*args, **kwargs)
        except RuntimeError as error:
            message = str(error)
            if "fail_on_recompile" not in message:
                raise
            if self._listener is not None:
                self._listener.refused(self.name, message)
            raise LateCompilationError(self.name, refusal_reasons(message)) from error


def with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """A twin of a function, method or module's forward, with a code object that no other step has.

    Dynamo keeps artefacts by code object: without it, and without guards on modules, a second step of one class
    would take the artefact of the first, whose constants (a norm's epsilon, a head's size) are not its own.
    """
    if isinstance(function, torch.nn.Module):
        function = function.forward
    plain = getattr(function, "__func__", function)
    if not isinstance(plain, FunctionType):
        return function  # an object that is called, or one made in C: there is no code to copy
    twin = FunctionType(
        plain.__code__.replace(), plain.__globals__, plain.__name__, plain.__defaults__, plain.__closure__
    )
    twin.__kwdefaults__, twin.__qualname__ = plain.__kwdefaults__, plain.__qualname__
    return MethodType(twin, function.__self__) if isinstance(function, MethodType) else twin


def refusal_reasons(message: str) -> tuple[str, ...]:
    """The failed guards in Dynamo's fail_on_recompile message, one string each, with their source line."""
    return tuple(
        reason.strip() for reason in re.findall(r"^\s*- (\d+/\d+: .*)$", message, flags=re.MULTILINE)
    )


def allow_recompiles(shapes: int) -> None:
    """Raises Dynamo's per-function limit so that `shapes` artefacts and a few more can be compiled.

    Reaching the limit would end in an error or in silent eager runs.
    """
    dynamo_config.recompile_limit = max(dynamo_config.recompile_limit, shapes + 4)
    dynamo_config.accumulated_recompile_limit = max(dynamo_config.accumulated_recompile_limit, shapes + 4)
