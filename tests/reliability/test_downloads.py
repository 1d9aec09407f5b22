"""R8, R10, R11: servers that lie, break off or stall, archives with malice. A file is right, or it is not there."""

import http.server
import io
import os
import random
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny_data
from stein.datasets import archives, fetch, sources

CONTENT = random.Random(0).randbytes(300_000)
ZIPPED = tiny_data.zipped(CONTENT)
PATH = "A/raw/content.gz"
WEB_PAGE = b"<!DOCTYPE html><html><body>Please log in</body></html>"


class Server(http.server.ThreadingHTTPServer):
    """Sends ``body``, each time in the next of the ``ways`` it was told, and in a good one when there are no more."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.body, self.ways, self.asked = ZIPPED, [], []  # type: bytes, list[str], list[str | None]
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/content.gz"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        way = self.server.ways.pop(0) if self.server.ways else "good"
        body, begin = self.server.body, int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if way.isdigit():
            self.send_error(int(way))
            return
        if way == "loop":
            self.send_response(302)
            self.send_header("Location", self.path)
            self.end_headers()
            return
        if begin >= len(body) and asked:
            self.send_error(416)
            return
        if "without ranges" in way or not asked:
            begin = 0
        self.send_response(206 if begin else 200)
        if begin:
            told = begin + 1 if "another range" in way else begin
            self.send_header("Content-Range", f"bytes {told}-{len(body) - 1}/{len(body)}")
        if "web page" in way:
            body, begin = WEB_PAGE, 0
        self.send_header("Content-Type", "text/html; charset=utf-8" if way == "web page" else "application/gzip")
        body = body[begin:]
        if "without length" not in way:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        for share in (10, 50, 99):
            if f"cut at {share} %" in way:
                body = body[: len(body) * share // 100]
        if "stall" in way:
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.server.released.wait(60)
        elif "slow" in way:
            for start in range(0, len(body), 2**16):
                self.wfile.write(body[start : start + 2**16])
                self.wfile.flush()
                time.sleep(0.1)
        else:
            self.wfile.write(body)
        if "reset" in way:
            self.connection.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("STEIN_DATA", raising=False)
    monkeypatch.setattr(fetch, "PAUSE", 0.001)
    monkeypatch.setattr(fetch, "TIMEOUT", 0.3)
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.released.set()
        running.shutdown()
        thread.join()


def entry(server: Server, *urls: str) -> sources.File:
    return tiny_data.file(PATH, CONTENT, urls or (server.url,))


def files(root: Path) -> dict[str, int]:
    """Everything that is there, with its size."""
    return {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*") if path.is_file()}


def assert_right(root: Path) -> None:
    """The file and nothing else: no part, no lock, no temporary directory."""
    assert (root / PATH).read_bytes() == ZIPPED
    assert files(root) == {PATH: len(ZIPPED)}
    assert not (root / ".partial").exists()


# -- transport ----------------------------------------------------------------------------------------------

RECOVERED = {
    "good": ["good"],
    "cut at 10 %": ["cut at 10 %", "good"],
    "cut at 50 %": ["cut at 50 %", "good"],
    "cut at 99 %": ["cut at 99 %", "good"],
    "cut again and again": [*["cut at 10 %"] * 6, "good"],  # more often than there are attempts, but each time further
    "cut, ranges not known": ["cut at 50 %", "without ranges"],
    "cut, another range than asked for": ["cut at 50 %", "another range", "good"],
    "500 once": ["500", "good"],
    "503, 429, 408": ["503", "429", "408", "good"],
    "stall": ["stall", "good"],
    "stall, then cut": ["stall", "cut at 50 %", "good"],
    "slow": ["slow"],
    "no length": ["without length"],
}


@pytest.mark.parametrize("name", RECOVERED)
def test_a_bad_connection_is_overcome(server: Server, tmp_path: Path, name: str) -> None:
    """Catches a part published, joined at the wrong place, given up on or waited for; and a part or lock left
    behind."""
    server.ways = list(RECOVERED[name])
    begin = time.monotonic()
    fetch.download([entry(server)], tmp_path)
    assert_right(tmp_path)
    assert time.monotonic() - begin < 50  # a stall lasts a minute
    assert len(server.asked) == len(RECOVERED[name])


def test_the_rest_is_asked_for_and_no_more(server: Server, tmp_path: Path) -> None:
    """Catches a resumed download that begins again."""
    server.ways = ["cut at 50 %"]
    fetch.download([entry(server)], tmp_path)
    assert server.asked == [None, f"bytes={len(ZIPPED) // 2}-"]


LOST = {
    "500": (["500"] * 4, "answers 500 Internal Server Error, 4 times in a row", 4),
    "404": (["404"], "answers 404 Not Found", 1),
    "403": (["403"], "answers 403 Forbidden", 1),
    "a circle of redirects": (["loop"] * 40, "answers 302 The HTTP server returned a redirect error", 5),
    "always cut at the same place": (["cut at 50 % without ranges"] * 5, f"lost at {len(ZIPPED) // 2} of", 4),
}


@pytest.mark.parametrize("name", LOST)
def test_a_server_that_has_nothing(server: Server, tmp_path: Path, name: str) -> None:
    """Catches endless attempts, attempts at what cannot work, and an error without the address."""
    server.ways, message, requests = list(LOST[name][0]), *LOST[name][1:]
    with pytest.raises(ConnectionError) as caught:
        fetch.download([entry(server)], tmp_path)
    assert str(caught.value).startswith(f"{server.url}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(server.asked) == requests
    assert not (tmp_path / PATH).exists()
    assert all(name.startswith(".partial/") for name in files(tmp_path))


def test_nobody_answers(server: Server, tmp_path: Path) -> None:
    """Catches a refused connection that ends in a traceback."""
    with pytest.raises(ConnectionError, match=r"http://127\.0\.0\.1:1/x: no answer: .*, 4 times in a row"):
        fetch.download([entry(server, "http://127.0.0.1:1/x")], tmp_path)
    assert files(tmp_path) == {}


def test_the_next_mirror_is_tried(server: Server, tmp_path: Path) -> None:
    """Catches the first mirror's failure taken for the end."""
    server.ways = ["404", "web page"]
    fetch.download([entry(server, "http://127.0.0.1:1/x", server.url, server.url, server.url)], tmp_path)
    assert_right(tmp_path)


def test_a_later_command_goes_on(server: Server, tmp_path: Path) -> None:
    """Catches an interrupted download thrown away."""
    server.ways = ["cut at 50 %", *["500"] * 4]
    with pytest.raises(ConnectionError):
        fetch.download([entry(server)], tmp_path)
    assert files(tmp_path) == {".partial/A-raw-content.gz.part": len(ZIPPED) // 2}
    fetch.download([entry(server)], tmp_path)
    assert server.asked[-1] == f"bytes={len(ZIPPED) // 2}-"
    assert_right(tmp_path)


@pytest.mark.parametrize("length", [1000, len(ZIPPED), len(ZIPPED) + 5])
def test_a_part_of_something_else(server: Server, tmp_path: Path, length: int) -> None:
    """Catches a stale part completed into a wrong file, or in the way for ever."""
    tiny_data.put(tmp_path, ".partial/A-raw-content.gz.part", bytes(length))
    fetch.download([entry(server)], tmp_path)
    assert_right(tmp_path)


# -- content ------------------------------------------------------------------------------------------------

WRONG = {
    "a web page": ("web page", ZIPPED, "is a web page instead of data"),
    "a web page that says it is data": ("lying web page", ZIPPED, "is a web page instead of data"),
    "another content": ("good", tiny_data.zipped(CONTENT[::-1]), "its SHA-256 is"),
    "truncated": ("good", ZIPPED[:-10], "is truncated or damaged"),
    "cut without a length": ("cut at 50 % without length", ZIPPED, "is truncated or damaged"),
    "empty": ("good", b"", "is empty"),
    "not compressed and wrong": ("good", CONTENT[:-1], "its SHA-256 is"),
    "too long": ("good", ZIPPED + bytes(10_000), "bytes; the right file has at most"),
    "too long without a length": ("without length", ZIPPED + bytes(10_000), "has more than the"),
    "a bomb": ("good", tiny_data.zipped(bytes(10**8)), "has more than the 300000 bytes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_content_leaves_nothing_behind(server: Server, tmp_path: Path, name: str) -> None:
    """Catches wrong bytes published, kept for the next attempt, or refused without the address and the reason."""
    way, server.body, message = WRONG[name]
    server.ways = [way] * 3
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is checked below
        fetch.download([entry(server)], tmp_path)
    assert str(caught.value).startswith(f"{server.url}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert files(tmp_path) == {}
    assert len(server.asked) == 1


def test_a_full_disk_is_no_lost_connection(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a part that fills the disk kept, or the disk's error answered by another attempt."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetch.durable, "publish", full)
    with pytest.raises(OSError, match="No space left"):
        fetch.download([entry(server)], tmp_path)
    assert (files(tmp_path), len(server.asked)) == ({}, 1)


def test_what_nobody_offers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"SVHN/partial_images\.npy: nobody offers it for download"):
        fetch.download([sources.SVHN_PARTIAL], tmp_path)
    assert files(tmp_path) == {}


def test_progress_is_one_bar_in_kilobytes(server: Server, tmp_path: Path) -> None:
    """Catches a new bar for each connection, and one that does not end at its total."""
    bars: dict[tuple[str, int], list[int]] = {}

    def begin(words: str, total: int) -> Any:
        assert (words, total) not in bars
        return bars.setdefault((words, total), []).append

    server.ways = ["cut at 50 %"]
    fetch.download([entry(server)], tmp_path, begin)
    ((_words, total),) = bars
    (done,) = bars.values()
    assert (total, done[-1]) == (len(ZIPPED) // 1024, len(ZIPPED) // 1024)
    assert done == sorted(done)


# -- several processes --------------------------------------------------------------------------------------

PROCESS = """if True:
    import sys
    from pathlib import Path
    from stein.datasets import fetch, sources
    url, root, digest = sys.argv[1:]
    download = sources.Download("A-raw-content.gz", (url,), 400_000)
    fetch.download([sources.File("A/raw/content.gz", 300_000, (digest,), download)], Path(root))
"""


def start(server: Server, root: Path, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROCESS, server.url, str(root), entry(server).digests[0]]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | environment)


def test_processes_fetch_at_once(server: Server, tmp_path: Path) -> None:
    """Catches two writers in one part, a file fetched twice, a loser that fails."""
    server.ways = ["slow"]
    processes = [start(server, tmp_path) for _ in range(3)]
    for process in processes:
        assert (process.communicate(timeout=120)[1], process.returncode) == ("", 0)
    assert_right(tmp_path)
    assert len(server.asked) == 1


@pytest.mark.parametrize("place", ["content.gz.rename:1", "content.gz.renamed:1"])
def test_killed_at_the_rename(server: Server, tmp_path: Path, place: str) -> None:
    """Catches a lock or a part of a dead process that stops the next one, and a name given before its time."""
    process = start(server, tmp_path, STEIN_FAILPOINT=place)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    assert (tmp_path / PATH).exists() == ("renamed" in place)
    fetch.download([entry(server)], tmp_path)
    assert_right(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["data", "fetch", "mnist", "--offline"], 2),
        (["data", "fetch", "all", "--offline"], 2),
        (["data", "list"], 0),
        (["data", "verify"], 2),
        (["data", "fetch", "uci-yacht"], 99),  # shows that the trap works
    ],
)
def test_offline_opens_no_socket(tmp_path: Path, arguments: list[str], code: int) -> None:
    """Catches any use of the network, even one that fails: the process ends with 99 at the first socket or look-up."""
    script = f"""if True:
        import os, sys
        sys.addaudithook(lambda event, _: event.startswith("socket.") and os._exit(99))
        import stein.cli
        sys.exit(stein.cli.main({arguments!r}))
    """
    environment = {name: value for name, value in os.environ.items() if name != "STEIN_DATA"}
    environment["XDG_CACHE_HOME"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == code, done.stderr
    assert files(tmp_path) == {} or code == 99


# -- archives -----------------------------------------------------------------------------------------------

BATCHES = {f"cifar/{name}.bin": tiny_data.cifar([number]) for number, name in enumerate(("one", "two"))}
UNPACKED = 40_000


def batches(server: Server) -> list[sources.File]:
    download = sources.Download("cifar.tar.gz", (server.url,), 100_000, unpacked=UNPACKED)
    return [tiny_data.file(path, content)._replace(download=download) for path, content in BATCHES.items()]


def member(name: str, content: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def packed(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


(ONE, FIRST), (TWO, SECOND) = BATCHES.items()
GOOD = [member(ONE, FIRST), member(TWO, SECOND)]
HARMLESS = {
    "as it should be": [],
    "../": [member("../evil", b"x"), member("cifar/../../evil", b"x")],
    "absolute": [member("/tmp/evil-of-stein", b"x")],
    "a link out": [member("cifar", type=tarfile.SYMTYPE, linkname="/tmp")],
    "a link to a link": [member("evil", type=tarfile.LNKTYPE, linkname="cifar")],
    "a device": [member("evil", type=tarfile.CHRTYPE), member("pipe", type=tarfile.FIFOTYPE)],
    "setuid": [member("evil", b"#!/bin/sh", mode=0o6777)],
    "a Windows drive": [member("C:\\evil", b"x"), member("..\\evil", b"x")],
    "the same in capitals": [member(ONE.upper(), b"x")],
    "a directory of the same name": [member("cifar/", type=tarfile.DIRTYPE)],
}


@pytest.mark.parametrize("name", HARMLESS)
def test_only_named_members_are_written(server: Server, tmp_path: Path, name: str) -> None:
    """R10. Catches anything written that was not asked for: outside, through a link, under another name."""
    server.body = packed(*HARMLESS[name], *GOOD)
    root = tmp_path / "deep" / "root"
    fetch.download(batches(server), root)
    assert {path: (root / path).read_bytes() for path in files(root)} == BATCHES
    assert set(files(tmp_path)) == {f"deep/root/{path}" for path in BATCHES}
    assert not any(path.is_symlink() for path in root.rglob("*"))
    assert not Path("/tmp/evil-of-stein").exists()


MALICE = {
    "is no plain file": [member(ONE, type=tarfile.SYMTYPE, linkname="/etc/passwd"), *GOOD],
    "one.bin: is no plain file": [member("x", FIRST), member(ONE, type=tarfile.LNKTYPE, linkname="x"), *GOOD],
    "has 3074 bytes, the right one 3073": [member(ONE, FIRST + b"x"), *GOOD],
    "one.bin: is not the file it should be": [
        member(ONE, FIRST[::-1]),
        *GOOD,
    ],  # the right one, given twice, is too late
    "one.bin: is empty": [member(ONE), *GOOD],
    "has more than 1000 members": [*(member(f"{i}") for i in range(1001)), *GOOD],
    "unpacks to more bytes than the right archive": [member("bomb", bytes(10**7)), *GOOD],
    "has no cifar/two.bin": GOOD[:1],
    "has no cifar/one.bin, cifar/two.bin": [],
    "is a web page instead of data": None,
}


@pytest.mark.parametrize("message", MALICE)
def test_malicious_archives_are_refused(
    server: Server, tmp_path: Path, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R10. Catches a link followed, a bomb unpacked, a hundred thousand members looked at, a wrong member published."""
    monkeypatch.setattr(archives, "MOST_MEMBERS", 1000 if "1000" in message else 10)
    unpacked = 10**7 if "1000" in message else UNPACKED
    server.body = WEB_PAGE if MALICE[message] is None else packed(*MALICE[message])
    wanted = [file._replace(download=file.download._replace(unpacked=unpacked)) for file in batches(server)]
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is checked below
        fetch.download(wanted, tmp_path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(server.url)
    assert set(files(tmp_path)) <= ({ONE} if message == "has no cifar/two.bin" else set())


def test_damaged_archives(server: Server, tmp_path: Path) -> None:
    """Catches an exception that is no message: 300 archives with bytes changed, cut off or repeated."""
    chooser = random.Random(1)
    (part := tmp_path / "part").touch()
    refused = 0
    for _ in range(300):
        body = bytearray(packed(*GOOD))
        for _ in range(chooser.randint(1, 3)):
            place = chooser.randrange(len(body))
            kind = chooser.randrange(3)
            if kind == 0:
                body[place] ^= 1 << chooser.randrange(8)
            elif kind == 1:
                del body[place:]
                body += b"\0"
            else:
                body[place:place] = body[:20]
        part.write_bytes(body)
        got = {}
        try:
            for file, content in archives.members(part, batches(server), UNPACKED, "here"):
                got[file.path] = content
        except ValueError as error:
            assert "\n" not in str(error)  # noqa: PT017 - most of them fail, not all
            refused += 1
        assert got.items() <= BATCHES.items()
    assert refused > 200


def test_damaged_tar_headers(server: Server, tmp_path: Path) -> None:
    """The same inside of the compression, where its checksum does not help."""
    chooser = random.Random(2)
    part = tmp_path / "part"
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for info, content in GOOD:
            archive.addfile(info, io.BytesIO(content))
    for _ in range(200):
        body = bytearray(plain.getvalue())
        header = chooser.choice((0, 512 + 3584))  # the two headers of 512 bytes
        for _ in range(chooser.randint(1, 4)):
            body[header + chooser.randrange(512)] = chooser.randrange(256)
        if chooser.random() < 0.7:  # with a right checksum, so that the fields are believed
            block = bytearray(body[header : header + 512])
            block[148:156] = b" " * 8
            body[header + 148 : header + 156] = b"%06o\0 " % sum(block)
        part.write_bytes(tiny_data.zipped(bytes(body)))
        got = {}
        try:
            for file, content in archives.members(part, batches(server), UNPACKED, "here"):
                got[file.path] = content
        except ValueError as error:
            assert "\n" not in str(error)  # noqa: PT017
        assert got.items() <= BATCHES.items()
