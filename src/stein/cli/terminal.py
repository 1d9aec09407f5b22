"""Output of the command line: tables, spinners and progress bars, on terminals and without one."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stein.datasets.fetch import Progress


def show(renderable: Any) -> None:
    """Print with rich, through `print`: rich itself would exit when the reader has closed the pipe."""
    from rich.console import Console

    console = Console(highlight=False)
    with console.capture() as captured:
        console.print(renderable)
    print(captured.get(), end="")


def status(message: str) -> Any:
    """A spinner on stderr during slow work; silent if stderr is not a terminal."""
    from rich.console import Console

    return Console(stderr=True).status(message)


@contextlib.contextmanager
def bars(every: float = 5.0) -> "Iterator[Progress]":
    """Progress on stderr: bars on a terminal, otherwise a line about all running tasks every few seconds."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        with _lines(every) as begin:
            yield begin
        return
    columns = (
        progress.TextColumn("{task.description:<34}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console) as bar:

        def begin_bar(words: str, total: int) -> Callable[[int], None]:
            task = bar.add_task(words, total=total)
            return lambda done: bar.update(task, completed=done)

        yield begin_bar


@contextlib.contextmanager
def _lines(every: float) -> "Iterator[Progress]":
    """A thread prints, so that lines also appear while a compilation reports nothing."""
    under_way: dict[str, float] = {}
    over = threading.Event()

    def say(words: str) -> None:
        with contextlib.suppress(OSError):  # the reader closed the pipe
            print(words, file=sys.stderr, flush=True)

    def repeat() -> None:
        while not over.wait(every):
            if under_way:
                say(", ".join(f"{words} {share:.0%}" for words, share in list(under_way.items())))

    def begin(words: str, total: int) -> Callable[[int], None]:
        say(words)
        under_way[words] = 0.0

        def tick(done: int) -> None:
            if words in under_way and done >= total:
                del under_way[words]
                say(f"{words} 100%")
            elif words in under_way:
                under_way[words] = done / total

        return tick

    printer = threading.Thread(target=repeat, daemon=True)
    printer.start()
    try:
        yield begin
    finally:
        over.set()
        printer.join()
