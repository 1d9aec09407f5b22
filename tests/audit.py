"""R9: hears when a file that is only read makes code run. One hook per process: Python has no way to remove one."""

import contextlib
import sys
from collections.abc import Iterator

FORBIDDEN = {"pickle.find_class", "os.system", "subprocess.Popen", "exec", "compile", "socket.connect", "import"}
FORBIDDEN |= {"os.exec", "os.fork", "os.posix_spawn", "ctypes.dlopen", "marshal.loads", "urllib.Request"}
_heard: list[str] | None = None


def _hook(event: str, arguments: tuple) -> None:
    if _heard is not None and event in FORBIDDEN and not (event == "import" and arguments[0] in sys.modules):
        _heard.append(f"{event} {arguments!r:.200}")


sys.addaudithook(_hook)


@contextlib.contextmanager
def listening() -> Iterator[list[str]]:
    """What code might have run inside; modules that are imported lazily must have been imported before."""
    global _heard
    _heard = events = []
    try:
        yield events
    finally:
        _heard = None
