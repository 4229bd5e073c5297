"""The `dlcb` command: `serve`, `check` and `cache` stand here, what is about models in `model_commands`."""

from __future__ import annotations

import importlib
import importlib.metadata
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from dlcb.kernel_cache import LayeredStore, ls, open_store, prune, stat
from dlcb.kernel_cache import check as check_entries
from dlcb.server import model_commands, screen
from dlcb.server.exit_codes import FAILED
from dlcb.server.model_commands import page
from dlcb.server.settings import import_beside, read

HELP = """Compile PyTorch models once, for any shape, and serve them.

Exit codes: 0 done, 1 failed (a model did not compile or load, the port is taken), 2 a wrong configuration
file or command line, 3 no C++ compiler, 4 an unusable cache folder or bundle."""

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # fills paragraphs; the default keeps their line breaks
)
cache = typer.Typer(help="Look into the kernel cache, and tidy it.", no_args_is_help=True)
app.add_typer(model_commands.app)
app.add_typer(cache, name="cache")

Folder = Annotated[
    Path | None,
    typer.Option("--folder", help="The cache's folder; default: $DLCB_CACHE, or ~/.cache/dlcb."),
]


class LogLevel(StrEnum):
    """What is logged to standard error, as one JSON object a line."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


Bundle = Annotated[
    Path | None, typer.Option(help="A file that `dlcb compile --bundle` wrote, to start from.")
]
NoCompile = Annotated[
    bool, typer.Option("--no-compile", help="Refuse to compile what cache and bundle lack.")
]
Level = Annotated[
    LogLevel, typer.Option(case_sensitive=False, help="What is logged to standard error, as JSON lines.")
]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"dlcb {importlib.metadata.version('dlcb')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """The options of `dlcb` itself."""


@app.command()
def serve(
    config: model_commands.Config = model_commands.QUICKSTART,
    host: Annotated[
        str | None, typer.Option(help="The address to listen on, in place of the configuration's.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="The port to listen on, in place of the configuration's; 0 takes a free one."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="How many worker processes, in place of the configuration's.")
    ] = None,
    bundle: Bundle = None,
    no_compile: NoCompile = False,
    log_level: Level = LogLevel.WARNING,
) -> None:
    """Compile the registered models and serve them.

    SIGTERM or Ctrl-C: reports itself not ready, answers what it has accepted and exits 0. A second one
    ends it at once."""
    server = {"host": host, "port": port, "workers": workers, "compile": False if no_compile else None}
    with model_commands.exit_codes():
        settings = read(config, _given(server), _given({"bundle": bundle}))
        import_beside(settings.folder)
    terminal = screen.Terminal([model.name for model in settings.models if model.load])
    # The web stack is not for the other commands: it takes longer to load than most of them to run.
    logs, serving = (importlib.import_module(f"dlcb.server.{name}") for name in ("logs", "serve"))
    logs.configure(log_level.value)
    raise typer.Exit(serving.run(settings, terminal, log_level.value))


@app.command()
def check(
    names: model_commands.Names = None,
    config: model_commands.Config = model_commands.QUICKSTART,
    bundle: Bundle = None,
    no_compile: NoCompile = False,
    log_level: Level = LogLevel.WARNING,
) -> None:
    """Say whether all that the configuration registers would start, also versions with `load: false`.

    Does what a start does (reads the files, compiles what the kernel cache lacks, loads and probes each model
    in a worker), but opens no port. Its lines and exit codes are those of `serve`, and every model that fails
    is named, not the first alone."""
    server = {"compile": False if no_compile else None}
    with model_commands.exit_codes():
        settings = read(config, _given(server), _given({"bundle": bundle}))
        import_beside(settings.folder)
        settings = model_commands.wanted(settings, names or [])
    terminal = screen.Terminal([model.name for model in settings.models if model.load], "checking")
    logs, checking = (importlib.import_module(f"dlcb.server.{name}") for name in ("logs", "checking"))
    logs.configure(log_level.value)
    raise typer.Exit(checking.check(settings, terminal, log_level.value))


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@cache.command("ls")
def list_entries(folder: Folder = None) -> None:
    """Every entry, the last used first."""
    table = Table("key", "kind", "label", "bytes", "uses", "last use", "pinned by")
    with _opened(folder) as store:
        for entry in ls(store):
            used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
            pinned = ", ".join(entry.pinned_by)
            table.add_row(
                entry.key[:12], entry.kind, entry.label, f"{entry.size:,}", str(entry.uses), used, pinned
            )
    page().print(table)


@cache.command("stat")
def statistics(folder: Folder = None) -> None:
    """How full it is, and what it was used for."""
    with _opened(folder) as store:
        found = stat(store)
    for name in found.__dataclass_fields__:
        typer.echo(f"{name.replace('_', ' '):<16} {getattr(found, name):,}")


@cache.command("prune")
def make_room(
    folder: Folder = None,
    limit_bytes: Annotated[
        int | None, typer.Option(min=0, help="Evict down to so many bytes; default: the store's bound.")
    ] = None,
    unused_days: Annotated[
        float | None, typer.Option(min=0, help="Evict what was not used for so many days.")
    ] = None,
) -> None:
    """Evict entries; those of models that a running server has loaded stay."""
    seconds = None if unused_days is None else unused_days * 86400
    with _opened(folder) as store:
        evicted = prune(store, limit_bytes, unused_for=seconds)
    typer.echo(f"evicted {len(evicted)} entries, {sum(record.size for record in evicted):,} bytes")


@cache.command("clear")
def clear(folder: Folder = None) -> None:
    """Evict every entry; those of models that a running server has loaded stay."""
    make_room(folder, limit_bytes=0, unused_days=None)


@cache.command("check")
def verify(folder: Folder = None) -> None:
    """Read everything and compare checksums; exit code 1 when something is damaged (it will be a miss)."""
    with _opened(folder) as store:
        report = check_entries(store)
    typer.echo(f"{report.whole} entries are whole")
    for finding in report.findings:
        typer.echo(str(finding))
    if report.findings:
        raise typer.Exit(FAILED)


@contextmanager
def _opened(folder: Path | None) -> Iterator[LayeredStore]:
    """The cache, to be looked into and tidied: also on a full disk, which is when that is wanted."""
    with model_commands.exit_codes():
        yield open_store(folder, to_write=False)
