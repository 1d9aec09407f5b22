"""Ctrl-C and `kill` as a request: the run ends at the next pause, with everything saved."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator


class StoppedError(RuntimeError):
    """The run stopped on a signal; ``exit_code`` is the shell's for the signal (130 or 143)."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message, signal_number)  # both, so that it can be sent to another process
        self.exit_code = 128 + signal_number

    def __str__(self) -> str:
        return str(self.args[0])


@contextlib.contextmanager
def requests() -> Iterator[list[int]]:
    """The signals received so far, SIGINT and SIGTERM; the second one ends the process at once.

    Python runs its handlers only between two instructions of the main thread, which may be inside a long compilation.
    The wake-up descriptor receives bytes without waiting for that, so a thread reads them.
    """
    received: list[int] = []
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def listen() -> None:
        while number := os.read(reader, 1)[0]:
            received.append(number)
            if len(received) > 1:
                os._exit(128 + number)
            with contextlib.suppress(OSError):
                print("stopping at the next pause, with a checkpoint; once more to stop at once", file=sys.stderr)

    # A shell starts its background jobs with SIGINT ignored: Ctrl-C is then meant for another process.
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) != signal.SIG_IGN]
    handlers = {number: signal.signal(number, lambda *_: None) for number in numbers}
    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield received
    finally:
        signal.set_wakeup_fd(previous)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.write(writer, b"\0")
        listener.join()
        os.close(reader)
        os.close(writer)
