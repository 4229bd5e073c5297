"""The `dlcb` command: `serve` and `cache` stand here, the commands about models in `model_commands`. Exit
codes: 0 done, 1 failed, 2 a configuration or usage error, 3 no compiler, 4 an unusable cache folder or
bundle."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dlcb.kernel_cache import LayeredStore, check, ls, open_store, prune, stat
from dlcb.server import model_commands
from dlcb.server.exit_codes import FAILED
from dlcb.server.settings import read

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
cache = typer.Typer(help="Look into the kernel cache, and tidy it.", no_args_is_help=True)
app.add_typer(model_commands.app)
app.add_typer(cache, name="cache")

Folder = Annotated[Path | None, typer.Option("--folder", help="default: $DLCB_CACHE, or ~/.cache/dlcb")]


@app.command()
def serve(
    config: model_commands.Config = model_commands.QUICKSTART,
    host: Annotated[str | None, typer.Option(help="instead of the file's")] = None,
    port: Annotated[int | None, typer.Option(help="instead of the file's; 0 takes a free one")] = None,
    workers: Annotated[int | None, typer.Option(help="instead of the file's")] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(help="a file of `dlcb compile --bundle` to start from, instead of the file's"),
    ] = None,
    no_compile: Annotated[
        bool, typer.Option("--no-compile", help="refuse to compile what cache and bundle lack")
    ] = False,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR")] = "WARNING",
) -> None:
    """Compile the registered models and serve them."""
    server = {"host": host, "port": port, "workers": workers, "compile": False if no_compile else None}
    with model_commands.exit_codes():
        settings = read(config, _given(server), _given({"bundle": bundle}))
    # The web stack is not for the other commands: it takes longer to load than most of them to run.
    logs, screen, serving = (
        importlib.import_module(f"dlcb.server.{name}") for name in ("logs", "screen", "serve")
    )
    logs.configure(log_level.upper())
    raise typer.Exit(serving.run(settings, screen.Terminal(), log_level.upper()))


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@cache.command("ls")
def list_entries(folder: Folder = None) -> None:
    """Every entry, the last used first."""
    table = Table("key", "kind", "label", "bytes", "uses", "last use", "pinned by")
    for entry in ls(_open(folder)):
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        pinned = ", ".join(entry.pinned_by)
        table.add_row(
            entry.key[:12], entry.kind, entry.label, f"{entry.size:,}", str(entry.uses), used, pinned
        )
    Console().print(table)


@cache.command("stat")
def statistics(folder: Folder = None) -> None:
    """How full it is, and what it was used for."""
    found = stat(_open(folder))
    for name in found.__dataclass_fields__:
        typer.echo(f"{name.replace('_', ' '):<16} {getattr(found, name):,}")


@cache.command("prune")
def make_room(
    folder: Folder = None,
    limit_bytes: Annotated[
        int | None, typer.Option(help="evict down to this; default: the store's bound")
    ] = None,
    unused_days: Annotated[float | None, typer.Option(help="evict what was not used for so long")] = None,
) -> None:
    """Evict entries; those of registered models stay."""
    seconds = None if unused_days is None else unused_days * 86400
    evicted = prune(_open(folder), limit_bytes, unused_for=seconds)
    typer.echo(f"evicted {len(evicted)} entries, {sum(record.size for record in evicted):,} bytes")


@cache.command("check")
def verify(folder: Folder = None) -> None:
    """Read everything and compare checksums; exit code 1 when something is damaged (it will be a miss)."""
    report = check(_open(folder))
    typer.echo(f"{report.whole} entries are whole")
    for finding in report.findings:
        typer.echo(str(finding))
    if report.findings:
        raise typer.Exit(FAILED)


def _open(folder: Path | None) -> LayeredStore:
    with model_commands.exit_codes():
        return open_store(folder)
