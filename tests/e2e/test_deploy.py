"""A finished run outside the library: as a program without stein, and over HTTP, as real processes."""

import contextlib
import csv
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import runs
from stein import cli

CONFIG = """
[data]
file = "houses.csv"
target = "{target}"
impute = true
unskew = true
[method]
name = "de"
particles = 4
[model]
hidden = [8]
[train]
steps = 100
[evaluation]
every = 0
summary = true
[tracking]
diagnostics = false
tensorboard = false
"""
NEW = """sold,area,garden,city
2019-05-05,50,true,Bern
2020-02-29T23:59:59Z,120.5,false,Rome
2019-05-05 06:00,,true,Oslo
2035-01-01,5000,false,Lima
1960-12-31,90,,
"""


def houses(rows: int) -> pd.DataFrame:
    """Text, a boolean, dates and gaps; the price follows them."""
    random = np.random.default_rng(0)
    area, city = random.uniform(30, 200, rows), random.choice(["Bern", "Oslo", "Rome"], rows)
    garden, sold = random.random(rows) < 0.4, np.datetime64("2019-01-01T00:00") + random.integers(0, 10**6, rows)
    price = 1e3 * (3 * area + 50 * (city == "Oslo") + 20 * garden + random.normal(0, 5, rows))
    area[random.random(rows) < 0.1] = np.nan
    columns = {"area": area.round(2), "city": city, "garden": garden, "sold": sold.astype(str)}
    return pd.DataFrame(columns | {"price": price.round(2)})


@pytest.fixture(
    scope="module", params=["price", pytest.param("city", marks=pytest.mark.long)], ids=["numbers", "classes"]
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a run, new rows, and what `stein predict` says about them."""
    folder = tmp_path_factory.mktemp(request.param)
    table = houses(200)
    table = table if request.param == "price" else table.drop(columns="price")
    table.to_csv(folder / "houses.csv", index=False)
    (folder / "config.toml").write_text(CONFIG.format(target=request.param))
    (folder / "new.csv").write_text(NEW)
    for command in (["train", "config.toml", "--out", "run", "--quiet"], ["predict", "run", "new.csv"]):
        with contextlib.chdir(folder):
            assert cli.main([*command, "--no-cache"]) == 0
    return folder


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


# -- the program --------------------------------------------------------------------------------------------

# A process in which stein cannot be imported, with a dict of lists as after reading a CSV.
WITHOUT_STEIN = """
import csv, json, sys
sys.modules["stein"] = None
sys.path.insert(0, "program")
import jax, numpy as np
from stein_program import Ensemble

jax.config.update("jax_enable_x64", False)  # a process has it off, and it stays off
ensemble = Ensemble("program")
rows = list(csv.DictReader(open("new.csv")))
table = {name: [row[name] for row in rows] for name in rows[0]}
found = ensemble.predict(table)
assert jax.numpy.ones(1).dtype == "float32"
one = [ensemble.predict({name: values[i : i + 1] for name, values in table.items()}) for i in range(len(rows))]
for name in found:
    each = np.concatenate([answer[name] for answer in one])
    assert (each == found[name]).all() or np.allclose(each.astype(float), found[name].astype(float), rtol=1e-5)
assert not [name for name in sys.modules if name.startswith("stein.")]
print(json.dumps({name: values.tolist() for name, values in found.items()}))
"""


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    with contextlib.chdir(folder):
        assert cli.main(["export", "run", "--out", "program"]) == 0
    return folder / "program"


def test_the_program_answers_as_predict_does_in_a_process_without_stein(
    program: Path, folder: Path, cache: Path
) -> None:
    """Gaps, new texts, dates with times and zones. Catches a part of the preprocessing or calibration left outside."""
    command = [sys.executable, "-W", "error", "-c", WITHOUT_STEIN]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=runs.environment(cache), check=False)
    assert done.returncode == 0, done.stderr
    agree(json.loads(done.stdout), folder)


def agree(found: dict[str, list[Any]], folder: Path) -> None:
    """The answers are those of `stein predict`, to 1e-6 of the target's standard deviation; far from the data, where
    predictions are many of these, to 1e-6 of the prediction."""
    expected = pd.read_csv(folder / "predictions.csv").drop(columns="notes")
    assert list(found) == list(expected)
    price = houses(200)["price"]
    scale, middle = (price.std(), price.mean()) if "mean" in found else (1.0, 0.0)
    for name, values in expected.items():
        if values.dtype.kind == "f":
            off = np.abs(values - found[name]) / np.maximum(scale, np.abs(values - middle))
            assert off.max() < 1e-6, name
        else:
            assert values.tolist() == found[name]


def test_a_damaged_program_and_a_wrong_table_are_refused(program: Path, tmp_path: Path) -> None:
    from stein.serve.loader import Ensemble

    ensemble = Ensemble(program)
    for table, words in (
        ({"area": ["many"]}, "row 0, column 'area': 'many': must be a number"),
        ({"area": [float("inf")]}, "row 0, column 'area': must be finite"),
        ({"area": [1.0], "sold": ["2019-13-01"]}, "row 0, column 'sold': '2019-13-01': must be a date"),
        ({"area": [1.0], "garden": ["maybe"]}, "row 0, column 'garden': 'maybe': must be true or false"),
        ({"size": [1.0]}, "none of the columns area"),
        ({"area": []}, "the table has no rows"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            ensemble.predict(table)
    shutil.copytree(program, tmp_path / "damaged")
    file = tmp_path / "damaged" / "program.jax"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"program\.jax is damaged"):
        Ensemble(tmp_path / "damaged")
    about = json.loads((program / "encoding.json").read_text())
    (tmp_path / "damaged" / "encoding.json").write_text(json.dumps(about | {"format": 2}))
    with pytest.raises(ValueError, match="format 2; this loader reads 1"):
        Ensemble(tmp_path / "damaged")


def test_an_export_does_not_replace_anything(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", str(folder / "run"), "--out", str(folder)]) == 2
    assert "exists already; give another path" in capsys.readouterr().err


# -- MLflow -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    with contextlib.chdir(folder):
        assert cli.main(["export", "run", "--format", "mlflow", "--out", "model"]) == 0
    return folder / "model"


def test_an_mlflow_model_is_the_program_and_its_loader(model: Path) -> None:
    """Catches a pickle, and a model that needs stein."""
    files = {str(path.relative_to(model)) for path in model.rglob("*") if path.is_file()}
    assert {"MLmodel", "code/stein_program.py", "data/program/program.jax", "data/program/encoding.json"} <= files
    assert not [name for name in files if name.endswith((".pkl", ".pickle", ".joblib"))]
    assert "loader_module: stein_program" in (model / "MLmodel").read_text()
    needed = (model / "requirements.txt").read_text().splitlines()
    assert {line.split("==")[0] for line in needed} == {"mlflow", "jax", "jaxlib", "numpy", "pandas", "flatbuffers"}


@pytest.mark.long  # installs MLflow with all it needs
def test_mlflow_serves_the_model_in_an_environment_of_its_own(model: Path, folder: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    scripts = tmp_path / "env" / "bin"
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "XLA", "JAX"))}
    plain["PATH"] = f"{scripts}:{plain['PATH']}"
    install = [scripts / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r"]
    subprocess.run([*install, model / "requirements.txt"], check=True, env=plain, capture_output=True, text=True)
    missing = subprocess.run([scripts / "python", "-c", "import stein"], env=plain, capture_output=True, check=False)
    assert missing.returncode == 1
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [scripts / "mlflow", "models", "serve", "-m", model, "--env-manager", "local", "--port", str(port)]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(list(map(str, command)), env=plain, stdout=log, stderr=log, start_new_session=True)
    try:
        rows = [as_json(row) for row in read(folder / "new.csv")]
        found = invocations(port, json.dumps({"dataframe_records": rows}), server, tmp_path / "log")["predictions"]
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=60)
    agree(pd.DataFrame(found).to_dict("list"), folder)


def invocations(port: int, body: str, server: subprocess.Popen, log: Path) -> Any:
    """The answer of MLflow's server, which takes its time to start."""
    end = time.monotonic() + 300
    while True:
        try:
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
                connection.request("POST", "/invocations", body, {"content-type": "application/json"})
                answer = connection.getresponse()
                content = answer.read().decode()
                assert answer.status == 200, content
                return json.loads(content)
        except ConnectionRefusedError:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.5)


# -- the server ---------------------------------------------------------------------------------------------


class Server:
    """`stein serve` as a process."""

    def __init__(self, folder: Path, cache: Path, *options: str):
        command = [*runs.HEARING_SIGNALS, runs.STEIN, "serve", "run", "--port", "0", *options]
        self.errors = folder / f"stderr-{time.time_ns()}"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                list(map(str, command)),
                cwd=folder,
                env=runs.environment(cache, **runs.QUICK),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.match(r"listening on http://127\.0\.0\.1:(\d+);", line)
        assert found, line + self.errors.read_text()
        self.port = int(found[1])

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def send(self, body: bytes, headers: dict[str, str] | None = None, path: str = "/predict") -> tuple[int, Any]:
        """The status and the answer, on a connection of its own."""
        with contextlib.closing(self.connection()) as connection:
            connection.request("POST", path, body, {"content-type": "application/json"} | (headers or {}))
            answer = connection.getresponse()
            assert answer.headers["content-type"] == "application/json"
            return answer.status, json.loads(answer.read())

    def ask(self, rows: list[Any]) -> Any:
        status, found = self.send(json.dumps({"rows": rows}).encode())
        assert status == 200, found
        return found

    def stop(self) -> None:
        """On SIGTERM it ends by it; nothing in any test has left a word on stderr."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=60) == -signal.SIGTERM
        assert self.process.stdout is not None
        self.process.stdout.close()
        assert self.errors.read_text() == ""


@pytest.fixture(scope="module")
def server(folder: Path, cache: Path) -> Iterator[Server]:
    server = Server(folder, cache, "--most-bytes", "20000", "--most-rows", "50")
    yield server
    if server.process.returncode is None:  # the last test stops it
        server.stop()


def as_json(row: dict[str, str]) -> dict[str, Any]:
    """A row of the CSV in the types of JSON."""
    found: dict[str, Any] = {name: value or None for name, value in row.items()}
    if found["area"]:
        found["area"] = float(found["area"])
    if found["garden"]:
        found["garden"] = found["garden"] == "true"
    return found


def as_text(answer: dict[str, Any]) -> dict[str, str]:
    """An answer as `stein predict` writes it."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in answer.items()}


def test_answers_are_those_of_predict(folder: Path, server: Server) -> None:
    """To the last digit: together, one by one, and at the same time. Catches rows in the answer to another request."""
    expected = read(folder / "predictions.csv")
    rows = [as_json(row) for row in read(folder / "new.csv")]
    found = server.ask(rows)
    assert [as_text(answer) for answer in found["predictions"]] == expected
    assert found["warnings"] == []
    with ThreadPoolExecutor(20) as pool:
        asked = list(range(len(rows))) * 12
        answers = pool.map(lambda i: server.ask([rows[i]])["predictions"][0], asked)
        for i, answer in zip(asked, answers, strict=True):
            assert as_text(answer) == expected[i]


def test_missing_and_new_columns_are_named(server: Server) -> None:
    found = server.ask([{"area": 50, "rooms": 3, "price": 1}])
    notes = found["predictions"][0]["notes"]
    assert "there is no column garden; there is no column sold" in notes
    assert "'garden', 'sold': filled with the median" in found["warnings"][0]
    assert found["warnings"][1].startswith("column 'rooms'")
    assert server.ask([{"area": 1e300}])["predictions"][0]["unusual"] is True


HOSTILE = {
    "nothing": (b"", 400, "not JSON"),
    "half": (b'{"rows": [{"area": 5', 400, "not JSON"),
    "not a number": (b'{"rows": [{"area": NaN}]}', 400, "not JSON"),
    "not text": (b'\xff\xfe{"rows"', 400, "not JSON"),
    "half a character": (b'{"rows": [{"city": "\xc3"}]}', 400, "not JSON"),
    "deep": (b'{"rows": [' + b"[" * 15_000, 400, "not JSON"),
    "a list": (b"[]", 422, "Expected `object`"),
    "no rows": (b'{"rows": []}', 422, "0 rows; must be from 1 to 50"),
    "too many rows": (json.dumps({"rows": [{"area": 1}] * 51}).encode(), 422, "51 rows"),
    "more keys": (b'{"rows": [{"area": 1}], "coverage": 2}', 422, "coverage"),
    "rows of numbers": (b'{"rows": [1]}', 422, "rows[0]: must be an object"),
    "no column": (b'{"rows": [{"area": 1}, {"size": 1}]}', 422, "rows[1]: has none of the run's columns"),
    "text for a number": (b'{"rows": [{"area": "50"}]}', 422, "rows[0]: column 'area': '50': must be a number"),
    "truth for a number": (b'{"rows": [{"area": true}]}', 422, "must be a number"),
    "a list for a number": (b'{"rows": [{"area": [1]}]}', 422, "must be a number"),
    "a huge number": (b'{"rows": [{"area": 1e999}]}', 422, "out of range"),
    "a number of 5000 digits": (b'{"rows": [{"area": ' + b"9" * 5000 + b"}]}", 422, "out of range"),
    "no such day": (b'{"rows": [{"sold": "2019-02-29"}]}', 422, "must be a date of the calendar"),
    "a word for a date": (b'{"rows": [{"sold": "na"}]}', 422, "must be a date of the calendar"),
    "a number for truth": (b'{"rows": [{"garden": 1}]}', 422, "must be true or false"),
    "a long name": (json.dumps({"rows": [{"x" * 9000: 1}]}).encode(), 422, "none of the run's columns"),
    "too large": (b" " * 20_001, 413, "larger than 20000 bytes"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_wrong_is_the_callers_fault(name: str, server: Server) -> None:
    body, status, words = HOSTILE[name]
    found = server.send(body)
    assert found[0] == status
    assert words in found[1]["error"]
    assert len(found[1]["error"]) < 600


def test_other_methods_types_and_paths(server: Server) -> None:
    assert server.send(b"{}", {"content-type": "text/plain"})[0] == 415
    assert server.send(b"{}", path="/predictions") == (404, {"error": "Not Found"})
    assert server.send(b"{}", path="/health")[0] == 405
    with contextlib.closing(server.connection()) as connection:  # without a length
        parts = iter([b" " * 10_000] * 3)
        connection.request("POST", "/predict", parts, {"content-type": "application/json"}, encode_chunked=True)
        assert connection.getresponse().status == 413
    with contextlib.closing(server.connection()) as connection:
        connection.request("GET", "/docs")
        answer = connection.getresponse()
        page = answer.read().decode()
        assert "POST /predict" in page
        assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page)  # asks no other server
        assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("request_line", [b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 500])
def test_what_is_no_http_ends_the_connection_only(request_line: bytes, server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        raw.sendall(request_line)
        raw.shutdown(socket.SHUT_WR)
        answer = raw.recv(1000)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert server.ask([{"area": 50}])


def test_a_thousand_requests_cut_off_in_the_middle(server: Server) -> None:
    """At any byte, or before the answer is read. Catches a worker that waits for the rest, or a leak of connections."""
    body = json.dumps({"rows": [{"area": 50}]}).encode()
    head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    whole = head.encode() + body
    before = server.ask([{"area": 50}])
    for i in range(1000):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
            raw.sendall(whole[: 1 + i * 7919 % len(whole)])
            if i % 3 == 0:  # not closed but torn down
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert server.ask([{"area": 50}]) == before


def test_an_address_that_is_taken_is_refused_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert cli.main(["serve", str(folder / "run"), "--port", port, "--no-cache"]) == 2
    assert (
        capsys.readouterr().err == f"error: --host 127.0.0.1 --port {port}: Address already in use; give another one\n"
    )
    assert cli.main(["serve", str(folder / "nothing"), "--port", "0"]) == 2
    assert "nothing: no such directory" in capsys.readouterr().err


# -- the schema ---------------------------------------------------------------------------------------------


def check_schema(url: str, examples: int, folder: Path) -> str:
    """schemathesis against the server's own schema; its report."""
    command = [Path(sys.executable).with_name("schemathesis"), "run", f"{url}/openapi.json", "--max-examples"]
    options = ["--seed", "0", "--workers", "1", "--no-color"]
    done = subprocess.run(
        [*command, str(examples), *options], cwd=folder, capture_output=True, text=True, env=os.environ, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_server_keeps_its_own_schema(server: Server, tmp_path: Path) -> None:
    assert "No issues found" in check_schema(f"http://127.0.0.1:{server.port}", 5, tmp_path)


@pytest.mark.long
def test_the_server_keeps_its_own_schema_in_many_requests(folder: Path, cache: Path, tmp_path: Path) -> None:
    server = Server(folder, cache)
    assert "No issues found" in check_schema(f"http://127.0.0.1:{server.port}", 1000, tmp_path)
    server.stop()


# -- the end, of the server of all tests above ---------------------------------------------------------------


def test_no_request_is_lost_when_the_server_is_told_to_stop(server: Server) -> None:
    """Half of the clients keep their connection, half make a new one each time. Whoever was let in gets an answer."""
    lost, done, refused = [], [], []
    body = json.dumps({"rows": [{"area": 50}]})

    def ask(keep: bool) -> None:
        connection = server.connection()
        while True:
            try:
                if connection.sock is None:
                    connection.connect()
            except ConnectionRefusedError:
                refused.append(1)
                return
            try:
                connection.request("POST", "/predict", body, {"content-type": "application/json"})
                answer = connection.getresponse()
                assert answer.status == 200
                answer.read()
                done.append(1)
            except (OSError, http.client.HTTPException) as error:
                lost.append(error)
                return
            if not keep or answer.headers.get("connection") == "close":
                connection.close()

    threads = [threading.Thread(target=ask, args=(i % 2 == 0,)) for i in range(8)]
    for thread in threads:
        thread.start()
    while len(done) < 50:
        time.sleep(0.01)
    server.stop()
    for thread in threads:
        thread.join(timeout=60)
    assert lost == []
    assert len(refused) == 8


# -- the page -----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_every_block_of_the_page_runs_as_it_stands(tmp_path: Path, cache: Path) -> None:
    """In order, in a directory with nothing but the examples. The server goes on while the blocks after it run."""
    root = Path(__file__).parents[2]
    shutil.copytree(root / "examples", tmp_path / "examples")
    with socket.create_server(("127.0.0.1", 0)) as free:
        page = (root / "docs" / "deploy.md").read_text().replace("8000", str(free.getsockname()[1]))
    scripts = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = runs.environment(cache, PATH=scripts)
    said, server = [], None
    for language, block in re.findall(r"```(\w+)\n(.*?)```", page, re.DOTALL):
        if block.startswith("stein serve"):
            server = subprocess.Popen(block.split(), cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
            assert server.stdout is not None
            assert "listening" in server.stdout.readline()
            continue
        command = ["bash", "-ec", block] if language == "sh" else [sys.executable, "-c", block]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, block + done.stderr
        said.append(done.stdout)
    assert server is not None
    server.terminate()
    server.communicate(timeout=60)
    assert len(said) == 8
    assert "city 'Lima' is new" in said[2]
    assert "True" in said[2]
