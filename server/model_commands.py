"""The commands about registered models: `compile`, `explain` and `bench`. Each reads the same YAML file as
`serve`, and the same kernel cache, so what one of them compiled the others find."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from dlcb import compiler
from dlcb.compiler import (
    CompileOptions,
    CompilerError,
    DeclarationError,
    ModelSource,
    RequestError,
    Signature,
    ToolchainError,
    UnknownName,
)
from dlcb.compiler.explain import explain as tables
from dlcb.compiler.report import Report
from dlcb.kernel_cache import CacheError, LayeredStore, bundle
from dlcb.server.cache import describe, open_described
from dlcb.server.datatypes import MAX_RANK
from dlcb.server.errors import ConfigError, NotFound
from dlcb.server.exit_codes import BAD_CACHE, BAD_CONFIG, FAILED, NO_COMPILER
from dlcb.server.padding import choose, declared_lines
from dlcb.server.repository import Repository
from dlcb.server.screen import report_line
from dlcb.server.settings import Batching, Model, Settings, device_of, import_beside, read

CODES: tuple[tuple[type[Exception], int], ...] = (  # the first that fits
    (ConfigError, BAD_CONFIG),
    (NotFound, BAD_CONFIG),
    (UnknownName, BAD_CONFIG),
    (CacheError, BAD_CACHE),
    (ToolchainError, NO_COMPILER),
    (CompilerError, FAILED),
)

app = typer.Typer()

Names = Annotated[
    list[str] | None, typer.Argument(metavar="[MODEL ...]", help="Registered names; none: all.")
]
Config = Annotated[Path, typer.Option(help="The YAML file with the server's options and the models.")]
Device = Annotated[
    str | None,
    typer.Option(help="cpu or cuda; default: the configuration's, else cuda where there is a GPU."),
]
Ranks = Annotated[
    list[int] | None,
    typer.Option("--rank", min=0, max=MAX_RANK, help="For models of any rank: this rank; may be repeated."),
]
QUICKSTART = Path("configs/quickstart.yaml")
UNBOUNDED = 100_000  # columns of output that no terminal bounds


@contextmanager
def exit_codes(about: str = "") -> Iterator[None]:
    """An error of a known kind ends the command with one line and the kind's exit code."""
    try:
        yield
    except tuple(kind for kind, _ in CODES) as error:
        about = "" if isinstance(error, ConfigError) else about  # which names file, line and key
        typer.echo(f"dlcb: {about}{' '.join(str(error).split())}", err=True)
        raise typer.Exit(next(code for kind, code in CODES if isinstance(error, kind))) from error


@contextmanager
def told_at_key(settings: Settings, model: Model) -> Iterator[None]:
    """A declaration that the code does not bear out is a mistake in the file, at the line of its key."""
    try:
        yield
    except DeclarationError as error:
        raise settings.at_key(model, error.key, str(error)) from error


@contextmanager
def told_at_sizes(settings: Settings, model: Model) -> Iterator[None]:
    """The same, and sizes in `bench` that the model refuses."""
    try:
        with told_at_key(settings, model):
            yield
    except RequestError as error:
        raise settings.at_key(model, "bench", error.message) from error


@app.command("compile")
def compile_models(
    names: Names = None,
    config: Config = QUICKSTART,
    ranks: Ranks = None,
    bundle_file: Annotated[
        Path | None, typer.Option("--bundle", help="Write all that these models need to this file.")
    ] = None,
    device: Device = None,
) -> None:
    """Compile registered models into the kernel cache, and with --bundle into one file. Models of any rank
    are compiled for the ranks of their `bench` shapes, as at a start, and for those of --rank."""
    with exit_codes():
        settings = _settings(config, device)
        store, options = _store(settings), _options(settings)
        models = _models(settings, names or [])
        _refuse_ranks_in_vain(ranks or [], models)
        sources = [
            (model, source)
            for model in models
            for source in _sources(settings, model, [*_benched_ranks(model), *(ranks or [])])
        ]
        keys: list[str] = []
        for model, source in sources:
            start = time.perf_counter()
            with exit_codes(f"{source.name}: "), told_at_key(settings, model):
                _signature, report = _compile(source, store, options)
            typer.echo(f"{source.name:<12} {report_line(report.to_json(), time.perf_counter() - start)}")
            keys += compiler.stored_keys(source, options, store)
        if bundle_file is not None:
            bundle.write(store, keys, bundle_file)
            typer.echo(
                f"wrote {len(set(keys))} entries, {bundle_file.stat().st_size:,} bytes, to {bundle_file}"
            )


@app.command()
def explain(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="A registered name.")],
    config: Config = QUICKSTART,
    ranks: Ranks = None,
    source_text: Annotated[
        bool, typer.Option("--source", help="Print the generated kernels' text instead.")
    ] = False,
    stage: Annotated[
        str,
        typer.Option(
            help="Print the program after a stage instead: capture, solve, a pass, passes, schedule or lower."
        ),
    ] = "",
    device: Device = None,
) -> None:
    """Say what became of a model: its tier, each dim with its reason, kernels, calls, guards."""
    with exit_codes():
        settings = _settings(config, device)
        options = _options(settings)
        (model,) = _models(settings, [name])
        _refuse_ranks_in_vain(ranks or [], [model])
        sources = _sources(settings, model, ranks or [])
        for source in sources[1:] or sources:  # a rank that was asked for, rather than the model of any rank
            if source_text or stage:
                _refuse_any_rank(source)
                with told_at_key(settings, model):
                    text = compiler.stage_text(source, stage or "generate", options)
                typer.echo(text, nl=not text.endswith("\n"))
                continue
            with exit_codes(f"{source.name}: "), told_at_key(settings, model):
                signature, report = _compile(source, _store(settings), options)
            page().print(tables(_as_configured(report, signature, source, model.batching), source.name))
            if report.tier == "jit":
                typer.echo("each rank is compiled for itself: --rank N says what became of one")


@app.command()
def bench(
    names: Names = None,
    config: Config = QUICKSTART,
    suite: Annotated[
        str,
        typer.Option(help="Measure survey, models, kernels, shapes or sizes instead of registered models."),
    ] = "",
    peers: Annotated[
        str, typer.Option(help="What to compare with, separated by commas.")
    ] = "eager,compile-dynamic",
    rounds: Annotated[int, typer.Option(min=1, help="How many interleaved rounds.")] = 7,
    out: Annotated[Path | None, typer.Option(help="A JSON file to keep results in, merged by case.")] = None,
    device: Device = None,
) -> None:
    """Time eager PyTorch, torch.compile and ours at the sizes of the configuration's `bench` lists."""
    with exit_codes():
        if suite:
            compiler.bench_suite(suite, names or (), peers=peers, device=device or "", rounds=rounds, out=out)
            return
        settings = _settings(config, device)
        cases = []
        models = {model.name: model for model in _models(settings, names or [])}
        for model in models.values():
            source = model.source(settings.folder)
            if not model.bench:
                typer.echo(f"{model.name}: no `bench` sizes in {config}, left out", err=True)
            cases += [(source, sizes) for sizes in model.bench]
        if not cases:
            raise ConfigError(f"{config}: no `bench` sizes, so there is nothing to measure")
        compiler.bench_registered(
            cases,
            peers=peers,
            device=device_of(settings),
            rounds=rounds,
            out=out,
            about=lambda source: told_at_sizes(settings, models[source.name]),
        )


def _settings(config: Path, device: str | None) -> Settings:
    settings = read(config, {} if device is None else {"device": device})
    import_beside(settings.folder)
    return settings


def _options(settings: Settings) -> CompileOptions:
    device = device_of(settings)
    return CompileOptions() if device == "cpu" else compiler.options_for(device)  # which asks PyTorch


def _store(settings: Settings) -> LayeredStore:
    return open_described(describe(settings.cache))


def _models(settings: Settings, names: Sequence[str]) -> list[Model]:
    """The newest version of each name; of all names where none is given."""
    repository = Repository(settings)
    wanted = names or list(dict.fromkeys(model.name for model in settings.models))
    return [repository.versions(name)[0] for name in wanted]


def wanted(settings: Settings, names: Sequence[str]) -> Settings:
    """The settings that load every registered version of these names when they start, of all names where none
    is given, and nothing else. NotFound for a name that is not registered."""
    repository = Repository(settings)
    chosen = {model.name for name in names for model in repository.versions(name)}
    models = [
        model.model_copy(update={"load": not names or model.name in chosen}) for model in settings.models
    ]
    return settings.model_copy(update={"models": tuple(models)})


def _sources(settings: Settings, model: Model, ranks: Sequence[int]) -> list[ModelSource]:
    """The model's source; of a model of any rank, then the same at each of `ranks`, once."""
    source = model.source(settings.folder)
    ranks = ranks if _takes_any_rank(model) else ()
    return [source, *(at_rank(source, rank) for rank in dict.fromkeys(ranks))]


def _takes_any_rank(model: Model) -> bool:
    return any(declared.shape is None for declared in model.inputs)


def _refuse_ranks_in_vain(ranks: Sequence[int], models: Sequence[Model]) -> None:
    if ranks and not any(map(_takes_any_rank, models)):
        names = ", ".join(model.name for model in models)
        raise ConfigError(f"--rank is for models of any rank, found none in {names}")


def _benched_ranks(model: Model) -> list[int]:
    """The ranks that a start compiles for."""
    return [len(shape) for shape in model.bench if isinstance(shape, tuple)]


def at_rank(source: ModelSource, rank: int) -> ModelSource:
    """The source with every any-rank input at `rank`, called so."""
    given = [rank if declared.shape is None else len(declared.shape) for declared in source.inputs]
    return replace(compiler.specialise(source, given), name=f"{source.name} rank {rank}")


def _refuse_any_rank(source: ModelSource) -> None:
    if any(declared.shape is None for declared in source.inputs):
        raise ConfigError(f"'{source.name}' takes any rank: say which with --rank")


def page() -> Console:
    """Standard output: as wide as its terminal, and where it is none as wide as what is printed."""
    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else UNBOUNDED
    return Console(width=width)


def _as_configured(report: Report, signature: Signature, source: ModelSource, batching: Batching) -> Report:
    """The report, and with the proofs about batching what the configuration makes of them."""
    chosen = choose(signature, batching.mask) if batching.stacks else (None, "")
    return replace(report, batching=(*report.batching, *declared_lines(batching, *chosen)))


def _compile(source: ModelSource, store: LayeredStore, options: CompileOptions) -> tuple[Signature, Report]:
    found = compiler.find(source, options, store)  # without PyTorch, which takes seconds to load
    if found is not None:
        return found[1].signature, found[1].report.as_cached()
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(bar_width=32),
        TextColumn("{task.fields[stage]:<12}"),
    )
    with Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bars:
        task = bars.add_task(source.name, total=1.0, stage="")
        compilation = compiler.compile_model(
            source, store, options, lambda stage, share: bars.update(task, completed=share, stage=stage)
        )
        return compilation.signature, compilation.report
