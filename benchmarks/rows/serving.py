"""P14: `stein serve` under load. The generator of the load is this process, on the same cores as the server."""

import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from harness import row

from rows.commands import COMMAND

RATE = 200
"""Requests a second, of one row each, whether or not the earlier ones are answered."""
CUT_OFF = 1000
TABLE = Path(__file__).parents[2] / "examples" / "houses.csv"
CONFIG = f"""
[data]
file = "{TABLE}"
target = "price"
[method]
name = "de"
particles = 20
[model]
hidden = [50, 50]
[train]
steps = 200
[evaluation]
summary = true
"""
BODY = json.dumps(
    {"rows": [{"area": 142.5, "city": "Porto", "built": 1950, "garden": True, "sold": "2021-03-06"}]}
).encode()
HEAD = "POST /predict HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
REQUEST = HEAD.format(len(BODY)).encode() + BODY


def load(seconds: float = 60) -> list[dict]:
    """Latencies from the moment at which a request was due, so that a server that stalls does not hide it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "run.toml").write_text(CONFIG)
        run = f"{folder}/run"
        subprocess.run(
            [COMMAND, "train", f"{folder}/run.toml", "--out", run, "--quiet"], check=True, capture_output=True
        )
        server = subprocess.Popen([COMMAND, "serve", run, "--port", "0"], stdout=subprocess.PIPE, text=True)
        try:
            port = int(server.stdout.readline().split(":")[2].split(";")[0])
            right = asyncio.run(_ask(port, [], 0.0))[1]
            if b'"mean"' not in right:
                raise RuntimeError(f"no prediction: {right!r}")
            answers = asyncio.run(_requests(port, seconds))
            for i in range(CUT_OFF):
                with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                    connection.sendall(REQUEST[: 1 + i * 7919 % len(REQUEST)])
            answers.append(asyncio.run(_ask(port, [], 0.0)))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=60)
    latencies = [taken for taken, _ in answers[:-1]]
    wrong = sum(answer != right for _, answer in answers)
    size = f"20 members of 2x50, {len(latencies)} requests in {seconds:g} s, {os.cpu_count()} cores"
    middle = f"median {1e3 * statistics.median(latencies):.1f} ms, longest {1e3 * max(latencies):.0f} ms"
    p99 = statistics.quantiles(latencies, n=100)[98]
    cut = f"of {len(answers)}, the last after {CUT_OFF} requests were cut off"
    return [
        row("P14 99th percentile of the time to an answer", size, p99, 1.0, 0.1, note=middle),
        row("P14 answers missing or wrong", size, wrong, 1.0, 0, unit="answers", note=cut),
    ]


async def _requests(port: int, seconds: float) -> list[tuple[float, bytes]]:
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    start = time.perf_counter()
    due = [start + i / RATE for i in range(round(seconds * RATE))]
    return await asyncio.gather(*(_ask(port, idle, moment) for moment in due))


async def _ask(port: int, idle: list, due: float) -> tuple[float, bytes]:
    """Seconds to the answer, and the answer; empty if there is none. Connections are kept, as clients keep them."""
    await asyncio.sleep(due - time.perf_counter())
    due = due or time.perf_counter()
    try:
        reader, writer = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        answer = await reader.readexactly(int(length.split(b":")[1]))
        idle.append((reader, writer))
    except (OSError, EOFError) as error:
        return time.perf_counter() - due, repr(error).encode()
    return time.perf_counter() - due, answer
