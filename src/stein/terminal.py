"""What the command line shows: tables, spinners and bars, on terminals and where there is none."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any


def show(renderable: Any) -> None:
    """Print with rich, through `print`: rich itself would end the process when the reader has left."""
    from rich.console import Console

    console = Console(highlight=False)
    with console.capture() as captured:
        console.print(renderable)
    print(captured.get(), end="")


def status(message: str) -> Any:
    """A spinner on stderr while something takes long; silent where stderr is no terminal."""
    from rich.console import Console

    return Console(stderr=True).status(message)


@contextlib.contextmanager
def bars() -> Iterator[Callable[[str, int], Callable[[int], None]]]:
    """Progress bars on stderr: a call with words and a total makes one and returns what is told how much is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:

        def begin(words: str, total: int) -> Callable[[int], None]:
            if not console.is_terminal:
                print(words, file=sys.stderr, flush=True)
            task = bar.add_task(words, total=total)
            return lambda done: bar.update(task, completed=done)

        yield begin
