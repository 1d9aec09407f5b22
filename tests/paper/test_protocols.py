"""The image tables: what the paper says about their rows, written down a second time."""

import itertools
import json
import pickle
from functools import partial

import msgspec
import pytest

from stein import datasets
from stein.paper import image_tables, protocols
from stein.runs import configs, launchers
from stein.runs.schema import Config, Data, Method, Train
from stein.storage import documents

SLOW, FAST = 2.5e-3, 5e-3
# Name of the row, label of the published table, learning rate and annealing on FashionMNIST, then on CIFAR-10.
PAPER = [
    ("de", "DE", SLOW, "none", 1e-3, "none"),
    ("w-svgd", "w-SVGD", FAST, "none", 1e-3, "none"),
    ("f-svgd", "f-SVGD", FAST, "linear", 1e-4, "none"),
    ("fw-svgd-l", "fw-SVGD-l", SLOW, "hyperbolic", 1e-3, "none"),
    ("fw-svgd-s", "fw-SVGD-s", SLOW, "hyperbolic", 1e-3, "none"),
    ("h-svgd-l", "h-SVGD-l", SLOW, "hyperbolic", 1e-3, "none"),
    ("h-svgd-s", "h-SVGD-s", SLOW, "hyperbolic", 1e-3, "none"),
    ("sgld-stochastic", "pSGLD", SLOW, "none", 1e-3, "none"),
    ("w-svgd-stochastic", "w-SVGD", FAST, "none", 1e-3, "none"),
    ("fw-svgd-l-stochastic", "fw-SVGD-l", SLOW, "hyperbolic", 1e-3, "none"),
    ("fw-svgd-s-stochastic", "fw-SVGD-s", FAST, "hyperbolic", 1e-3, "none"),
    ("h-svgd-l-stochastic", "h-SVGD-l", FAST, "hyperbolic", 1e-3, "linear"),
    ("h-svgd-s-stochastic", "h-SVGD-s", FAST, "hyperbolic", 1e-3, "linear"),
]
PRESETS = ("smoke", "laptop", "paper", "corrected")
EVERY_ROW = list(itertools.product(protocols.PROTOCOLS, PRESETS))


@pytest.mark.parametrize(("table", "column"), [("table1", 2), ("digits", 2), ("table2", 4)])
def test_the_thirteen_rows_are_the_papers(table, column):
    """In their order. Catches a learning rate or an annealing of another row or table, also in the config."""
    rows = protocols.rows(table, "smoke")
    assert len(rows) == 13
    assert protocols.rows(table, "laptop")[:13] == rows
    assert [(row.name, row.label, row.learning_rate, row.annealing) for row in rows] == [
        (*line[:2], *line[column : column + 2]) for line in PAPER
    ]
    for row in rows:
        config = protocols.config(table, "paper", row, 40)
        assert config.optimiser.learning_rate == row.learning_rate
        assert (config.annealing.name, config.optimiser.name) == (row.annealing, "adam")
        assert (config.train.seed, config.method.stochastic) == (40, row.name.endswith("-stochastic"))


@pytest.mark.parametrize(("table", "exact"), [("table1", 1), ("table2", 1), ("digits", 0)])
def test_at_the_papers_budget_one_row_has_the_exact_repulsion(table, exact):
    """Beside the same row with the local one. Catches a fourteenth row that is another's copy, or in every preset."""
    for preset, more in (("smoke", 0), ("paper", exact), ("corrected", exact)):
        rows = protocols.rows(table, preset)
        assert [row.name for row in rows[13:]] == ["h-svgd-l-exact"] * more
        repulsions = [protocols.config(table, preset, row, 42).method.repulsion for row in rows if not row.stochastic]
        assert repulsions == ["auto"] * 7 + ["exact"] * more
    laptop = [protocols.config(table, "laptop", row, 42).method.repulsion for row in protocols.rows(table, "laptop")]
    assert "exact" not in laptop


def test_later_methods_have_rows_of_their_own():
    """Beside the paper's, on a laptop. Catches the noise inside Adam for a sampler, another start without its word in
    the name, and a repulsion at labelled images, or in the shift of all logits."""
    later = protocols.rows("table1", "laptop")[13:]
    started = ["de-own-start", "f-svgd-own-start", "h-svgd-l-own-start", "sghmc-stochastic-own-start"]
    assert [row.name for row in later] == ["rde", "forde", *started]
    rde, forde, *own = (protocols.config("table1", "laptop", row, 42).method for row in later)
    de, sghmc = own[0], own[-1]
    assert [section.start for section in (rde, forde, *own)] == ["prior", "prior", *["model"] * 4]
    assert (rde.compares, rde.extra_points, rde.extra_source) == ("probabilities", 64, "patches")
    assert (sghmc.stochastic, sghmc.noise, sghmc.noise_place) == (True, "cholesky", "langevin")
    assert (forde.name, de.name) == ("forde", "de")


def test_what_the_rows_share_is_the_papers():
    """Catches a smaller budget under the name paper, and settings of the other table."""
    row = protocols.rows("table1", "paper", ["h-svgd-l"])[0]
    fashion = protocols.config("table1", "paper", row, 42)
    assert (fashion.method.particles, fashion.train.steps, fashion.train.batch_size) == (50, 60_000, 256)
    assert (fashion.model.name, fashion.model.hidden, fashion.annealing.steps) == ("mlp", (100, 100, 100), 1000)
    assert (fashion.prior.scale, fashion.method.start) == (1.0, "prior")
    cifar = protocols.config("table2", "paper", row, 42)
    assert (cifar.method.particles, cifar.train.steps, cifar.train.batch_size) == (20, 35_000, 128)
    assert (cifar.model.name, cifar.prior.scale, cifar.method.start) == ("resnet32", 0.1, "model")
    for table, name, outside in (("table1", "fashion-mnist", "mnist"), ("table2", "cifar10", "svhn")):
        shared = protocols.protocol(table, "paper")
        assert (shared.data.name, shared.outside, shared.seeds) == (name, (outside,), (38, 39, 40, 41, 42))


@pytest.mark.parametrize(("table", "preset"), EVERY_ROW)
def test_every_row_is_a_config_that_a_run_accepts(table, preset):
    """What a cell writes is what `stein resume` reads. Catches conflicts of a budget: pauses, annealing, local
    noise."""
    for row in protocols.rows(table, preset):
        config = protocols.config(table, preset, row, 42)
        assert configs.parse(configs.dump(config)) == config
        assert not config.data.validate
        assert not config.train.early_stop


@pytest.mark.parametrize("table", protocols.PROTOCOLS)
def test_a_smaller_budget_changes_nothing_but_the_budget(table):
    """And on a laptop the course of the learning rate; for CIFAR-10 the network and the scale of its pixels, which the
    note says. Catches a preset that changes the method or the data on the way."""
    for row in protocols.rows(table, "paper"):
        paper = protocols.config(table, "paper", row, 42)
        small, laptop, corrected = (
            protocols.config(table, preset, row, 42) for preset in ("smoke", "laptop", "corrected")
        )
        assert small.train.steps <= 100
        assert laptop.train.steps <= paper.train.steps == corrected.train.steps
        for other in (small, laptop, corrected):
            assert (other.likelihood, other.prior) == (paper.likelihood, paper.prior)
            assert msgspec.structs.replace(other.optimiser, schedule="constant") == paper.optimiser
            smaller = other is laptop and table == "table2"
            assert msgspec.structs.replace(other.model, blocks=5, stride=1) == paper.model
            assert (other.model == paper.model) != smaller
            assert msgspec.structs.replace(other.data, most_test=0, standardise="auto") == paper.data
            assert other.data.standardise == (True if smaller else "auto")
        notes = {preset: protocols.protocol(table, preset).note for preset in PRESETS}
        assert [preset for preset, note in notes.items() if note] == (["laptop"] if table == "table2" else [])
        falls = "constant" if table == "digits" else "cosine"
        assert [c.optimiser.schedule for c in (small, laptop, corrected)] == ["constant", falls, "constant"]
        assert small.method.name == laptop.method.name == paper.method.name
        assert small.method.noise_place == laptop.method.noise_place == paper.method.noise_place


@pytest.mark.parametrize("table", protocols.PROTOCOLS)
def test_noise_is_the_published_one_or_the_right_one(table):
    """Catches `paper` repaired in silence, and `corrected` that is not: root, place, repulsion and pSGLD's name."""
    for row in protocols.rows(table, "paper"):
        published, right = (protocols.config(table, preset, row, 42).method for preset in ("paper", "corrected"))
        if not row.stochastic:
            assert published == right
            assert not published.stochastic
            continue
        assert (published.noise, published.noise_place) == ("elementwise-shared", "adam-inside")
        assert (right.noise, right.noise_place, right.repulsion) == ("cholesky", "langevin", "auto")
        assert published.stochastic
        assert right.stochastic
        assert published.repulsion == ("auto" if row.method in ("sgld", "w-svgd") else "local")
        assert (published.name, right.name) == (row.method, "psgld" if row.method == "sgld" else row.method)


def test_f_svgd_has_its_functional_prior():
    """Catches an f-SVGD without a prior, and one that is for fully connected networks on a residual one."""
    for table, prior in (("table1", "infinite-width"), ("table2", "ssge")):
        for row in protocols.rows(table, "paper"):
            method = protocols.config(table, "paper", row, 42).method
            assert method.functional_prior == (prior if row.method == "f-svgd" else "auto")
            if method.functional_prior == "ssge":
                assert method.prior_draws == method.particles


def test_published_numbers():
    """Two of each table by hand; a row for each of ours. Catches noise and no noise exchanged, and per cent."""
    fashion, cifar = image_tables._published("table1"), image_tables._published("table2")
    for table, published in (("table1", fashion), ("table2", cifar)):
        assert list(published) == [(row.label, row.stochastic) for row in protocols.rows(table, "smoke")]
    assert fashion["h-SVGD-l", False]["auroc_md"] == 0.985
    assert fashion["DE", False]["accuracy"] == pytest.approx(0.88864)
    assert cifar["h-SVGD-s", True]["nll_paper"] == 0.269
    assert cifar["pSGLD", True]["accuracy"] == pytest.approx(0.85818)
    assert set(fashion["DE", False]) - set(cifar["DE", False]) == {"auroc_md"}
    assert set(fashion["DE", False]) <= set(image_tables.SHOWN)
    assert image_tables._published("digits") == {}


def test_rows_are_chosen_by_name():
    """In the table's order. Catches a name that is silently left out."""
    chosen = protocols.rows("digits", "paper", ["h-svgd-l-stochastic", "de"])
    assert [row.name for row in chosen] == ["de", "h-svgd-l-stochastic"]
    with pytest.raises(ValueError, match=r"--methods = 'h-svgd': not in this table; it has de, w-svgd, "):
        protocols.rows("digits", "paper", ["de", "h-svgd"])


@pytest.mark.parametrize(("table", "outside"), [("table1", [("mnist", "test")]), ("digits", [])])
def test_all_images_are_there_before_anything_is_trained(table, outside, monkeypatch, tmp_path):
    """Catches hours of training before somebody looks for the images that the ensembles are judged on."""
    done = []
    monkeypatch.setattr(datasets, "load_images", lambda name, part, folder, progress: done.append((name, part)))
    monkeypatch.setattr(image_tables, "make_missing", lambda *arguments: done.append("trained"))
    image_tables.make(
        tmp_path, image_tables.cells(table, "smoke"), launchers.local(1), lambda what, length: lambda so_far: None
    )
    name = protocols.PROTOCOLS[table].data.name
    assert done == [(name, "train"), (name, "test"), *outside, "trained"]


def test_a_cell_can_be_sent_to_another_process(tmp_path):
    """Catches a part of it that only this process knows."""
    cell = image_tables.Cell("digits", "smoke", protocols.FASHION[0], 42)
    work, sent = pickle.loads(pickle.dumps((partial(image_tables.make_cell, tmp_path), cell)))  # noqa: S301
    assert (work.func, work.args, sent) == (image_tables.make_cell, (tmp_path,), cell)


def test_a_table_keeps_the_entries_whose_runs_are_gone(tmp_path):
    """Catches a second seed, or a second machine, that erases the first; and one row made of two settings."""

    def entry(label, seed):
        return {"label": label, "stochastic": False, "seed": seed}

    documents.write_text(tmp_path / "table.json", json.dumps([entry("DE", 41), entry("DE", 42), entry("f-SVGD", 42)]))
    # As a run of two versions ago has it: keys are missing, and what is "auto" today is spelled out.
    settings = {
        "data": {"name": "digits", "seed": 42, "standardise": False},
        "method": {"name": "f-svgd", "functional_prior": "ssge"},
        "likelihood": {"sigma": 1.0},
        "train": {"seed": 42, "steps": 10},
    }
    documents.write_text(tmp_path / "about.json", json.dumps({"configs": {"de": settings, "f-svgd": settings}}))
    names = {("DE", False): "de", ("f-SVGD", False): "f-svgd"}
    method = Method("f-svgd", functional_prior="ssge")
    now = msgspec.to_builtins(Config(Data(name="digits"), method, train=Train(steps=10, seed=43)))
    assert (now["data"]["standardise"], now["likelihood"]["sigma"]) == ("auto", "auto")

    def kept(used, begun):
        return image_tables._kept(tmp_path, names, used, begun)[1]

    assert kept({"de": now}, {("de", 42), ("de", 43)}) == [entry("DE", 41), entry("f-SVGD", 42)]
    other = now | {"method": now["method"] | {"functional_prior": "auto"}}  # the wide limit, for an mlp and classes
    assert kept({"f-svgd": other}, {("f-svgd", 43)}) == [entry("DE", 41), entry("DE", 42)]
    lost = image_tables._left_out(tmp_path, names, kept({"f-svgd": other}, set()), {("de", 42)})
    assert lost == ["f-svgd-42"]  # sees entries that vanish without a word
    split = now | {"data": now["data"] | {"seed": 43}}  # other rows of the data are another row of the table
    assert kept({"f-svgd": split}, {("f-svgd", 43)}) == [entry("DE", 41), entry("DE", 42)]
    assert image_tables._kept(tmp_path / "new", names, {}, set()) == ({}, [])
    (tmp_path / "about.json").write_text('{"configs": {"de"')  # cut off: nothing is kept, and nothing is overwritten
    with pytest.raises(ValueError, match=r"about.json: lacks the settings of table.json"):
        kept({}, set())


def test_differences_are_those_of_one_seed():
    """Catches a row beside the baseline of another seed, the noisy baseline in its place, and a missing seed that moves
    the others up."""

    def row(label, stochastic, seed, value):
        numbers = dict.fromkeys(image_tables.SHOWN, value)
        return {"label": label, "stochastic": stochastic, "seed": seed} | numbers

    base = [row("DE", False, 41, 0.5), row("DE", False, 42, 0.7)]
    found = [*base, row("DE", True, 41, 9.0), row("w-SVGD", False, 42, 0.8), row("w-SVGD", False, 43, 0.1)]
    lines = image_tables.differences(found).splitlines()
    assert lines[2] == "**Minus DE of the same seed: 41, 42**"
    assert lines[-2:] == [
        "| yes | DE |" + " +8.500, – |" * 5,
        "| no | w-SVGD |" + " –, +0.100 |" * 5,
    ]
    assert image_tables.differences(found[:1]) == ""
