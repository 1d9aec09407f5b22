"""What a run will cost, before it is trained."""

import pytest

from stein.cli import runs
from stein.runs import forecast

TOY = """
[data]
name = "regression-1d"
[model]
hidden = [7]
[method]
name = "w-svgd"
particles = 4
[train]
steps = 1000
batch_size = 16
"""
WEIGHTS = 1 * 7 + 7 + 7 + 1
ADAM = 3  # the weights and two moments of them


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "toy.toml"
    path.write_text(TOY)
    return path


def test_a_dry_run_tells_time_and_memory_and_writes_nothing(config, tmp_path, monkeypatch, capsys):
    """Catches a run that is begun, times of the whole chunk for those of a step, and memory without the optimiser."""
    monkeypatch.chdir(tmp_path)
    runs.train(config, dry_run=True, cache=False)
    name, time, memory, last = capsys.readouterr().out.splitlines()
    assert name == f"w-svgd: 4 members of {WEIGHTS} weights, 1,000 steps"
    assert time.startswith("time: ")
    assert memory.startswith("memory: ")
    assert last.startswith("nothing was written")
    assert list(tmp_path.iterdir()) == [config]


def test_numbers_belong_together(config):
    """Catches seconds per chunk, and memory that leaves out what a step reads or writes."""
    from stein.runs import configs

    found = forecast.of(configs.load(config))
    assert (found.members, found.weights, found.steps) == (4, WEIGHTS, 1000)
    assert found.memory >= 2 * 4 * 4 * WEIGHTS * ADAM  # float32, before and after a step
    assert 0 < found.step < 0.1
    assert found.compilation > found.step


def test_a_dry_run_is_of_one_device(config):
    """Catches the time of one device told for eight."""
    with pytest.raises(ValueError, match="--dry-run: times one device"):
        runs.train(config, dry_run=True, devices=8)
    with pytest.raises(ValueError, match="--devices = 0"):
        runs.train(config, dry_run=True, devices=0)


@pytest.mark.parametrize("dry_run", [True, False])
def test_what_does_not_fit_is_refused_before_it_begins(dry_run, config, tmp_path, monkeypatch):
    """Catches a run that is begun, and killed by the system. Catches members counted without their optimiser."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(forecast, "free", lambda: 2 * 4 * 4 * WEIGHTS * ADAM - 1)
    with pytest.raises(ValueError, match="4 members need at least"):
        runs.train(config, dry_run=dry_run, cache=False)
    assert not list(tmp_path.glob("runs/*/config.toml"))


def test_times_and_sizes_are_readable():
    """Catches hours called minutes."""
    assert [forecast._time(s) for s in (3.21, 600, 7200)] == ["3.2 s", "10 minutes", "2 hours"]
    assert [forecast._bytes(b) for b in (4_200_000, 9_620 * 10**9)] == ["4.2 MB", "9,620.0 GB"]
