"""Commands about the installation: methods, doctor, data sets."""

import json as json_module
import pathlib
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional

from stein.cli import terminal


def methods(json: bool = False) -> None:
    """List every method: what it does, what it costs, whether it targets the posterior.

    Args:
        json: print a JSON list instead of a table.
    """
    from stein.methods import ALIASES, LEGEND, METHODS

    if json:
        fields = ("name", "summary", "cost", "stochastic", "posterior", "recommended")
        listed = [{field: getattr(method, field) for field in fields} for method in METHODS.values()]
        for entry in listed:
            entry["aliases"] = [alias for alias, name in ALIASES.items() if name == entry["name"]]
        print(json_module.dumps(listed, indent=2))
        return

    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("method", no_wrap=True, style="bold")
    for column in ("what it does", "cost", "noise", "posterior"):
        table.add_column(column, overflow="fold")
    for method in METHODS.values():
        table.add_row(method.name, method.summary, method.cost, method.stochastic, method.posterior)
    terminal.show(table)
    terminal.show("\n" + " ".join(LEGEND.split()))
    terminal.show("\nWhat we recommend, by our own numbers (docs/findings.md, docs/paper.md):")
    recommended = Table.grid(padding=(0, 2))
    for method in METHODS.values():
        if method.recommended:
            recommended.add_row(f"  {method.name}", method.recommended)
    terminal.show(recommended)
    terminal.show("\nShort names: " + ", ".join(f"{alias} is {name}" for alias, name in ALIASES.items()))


def doctor() -> None:
    """Check the installation: versions, devices, and whether JAX computes correct sums."""
    with terminal.status("Importing JAX"):
        from stein.cli.doctor import FIX, examine
        from stein.runs.environment import facts
    with terminal.status("Computing sums with known answers"):
        # Before `facts`, which opens the devices: an accelerator may not be shared with the child process.
        checks = examine()
        environment = facts()

    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, value in environment.items():
        table.add_row(name, value)
    for check in checks:
        mark = "[green]ok[/]" if check.passed else "[red]FAILED[/]"
        table.add_row(check.name, f"{mark}  {check.detail}")
    terminal.show(table)
    failed = sum(not check.passed for check in checks)
    if failed:
        raise RuntimeError(f"{failed} of {len(checks)} checks failed: JAX is not to be trusted here; fix: {FIX}")


def data(
    action: Positional[Literal["list", "fetch", "verify"]],
    names: Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="[NAME ...]", help_behavior_hint="")]] = (),
    *,
    data_dir: Annotated[pathlib.Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")] = None,
    offline: bool = False,
) -> None:
    """List the data sets, download missing ones, or verify the local files.

    The search path is --data-dir, STEIN_DATA, Debian's FashionMNIST package, then the user's cache.

    Args:
        action: list, fetch or verify.
        names: data sets as `stein data list` shows them. Default: all. `fetch` needs names, or `all`.
        data_dir: a directory with torchvision's folder names; `fetch` downloads to it instead of the user's cache.
        offline: open no connection; a missing data set is an error.
    """
    from stein.datasets import catalogue

    if action == "fetch":
        with terminal.bars() as bars:
            lines = list(catalogue.get(names, data_dir, offline, bars))
        print("\n".join(lines))
    elif action == "verify":
        for line in catalogue.verify(names, data_dir):
            print(line, flush=True)
    else:
        from rich.table import Table

        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
        table.add_column("data set", no_wrap=True, style="bold")
        for column in ("what it is", "where"):
            table.add_column(column, overflow="fold")
        for dataset in catalogue.chosen(names):
            table.add_row(dataset.name, dataset.about, catalogue.state(dataset, data_dir))
        terminal.show(table)
