"""Images and tables by name: what is read is what was written, and what is wrong is named in one line."""

import gzip
import inspect
import io
import os
import sys
import zipfile

import numpy as np
import pytest
import scipy.io

import tiny_data
from problems import rounding
from stein import datasets
from stein.datasets import catalogue, images, sources, uci


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Nobody's data is found by chance, and nothing is downloaded: every test is offline."""
    monkeypatch.delenv("STEIN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def mnist(tmp_path, monkeypatch):
    """A data root with a tiny MNIST."""
    contents = tiny_data.mnist()
    monkeypatch.setitem(sources.DATASETS, "mnist", tiny_data.known("mnist", contents))
    for path, content in contents.items():
        tiny_data.put(tmp_path / "root", path, tiny_data.zipped(content))
    return tmp_path / "root"


def load(name, part="train", root=None):
    return datasets.load_images(name, part, root, offline=True)


# -- good files ---------------------------------------------------------------------------------------------


def test_idx(mnist):
    """Catches train and test exchanged, axes in another order, labels and images exchanged."""
    train, test = load("mnist", "train", mnist), load("mnist", "test", mnist)
    assert (train.x.shape, train.x.dtype, train.y.dtype) == ((2, 2, 3, 1), np.uint8, np.int32)
    assert train.x[1, 0, 2, 0] == 8  # image 1, row 0, column 2 of 2 x 3 pixels that count up
    assert train.y.tolist() == [7, 0]
    assert test.x[1, 0, 2, 0] == 108
    assert test.y.tolist() == [8, 1]
    assert (train.name, train.note) == ("mnist", "")


def test_unpacked_idx_is_the_same(mnist):
    """Catches a copy that torchvision left without .gz overlooked."""
    zipped = load("mnist", "train", mnist)
    for path in mnist.rglob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    np.testing.assert_array_equal(load("mnist", "train", mnist).x, zipped.x)


def test_cifar(tmp_path, monkeypatch):
    """Catches colours first, rows and columns exchanged, batches in another order, the test batch among them."""
    names = [entry.path for entry in sources.DATASETS["cifar10"].files]
    contents = {path: tiny_data.cifar([number, 9 - number]) for number, path in enumerate(names)}
    monkeypatch.setitem(sources.DATASETS, "cifar10", tiny_data.known("cifar10", contents))
    for path, content in contents.items():
        tiny_data.put(tmp_path, path, content)
    train, test = load("cifar10", "train", tmp_path), load("cifar10", "test", tmp_path)
    assert train.x.shape == (10, 32, 32, 3)
    assert train.y.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
    assert test.y.tolist() == [5, 4]
    assert train.x[1, 2, 5].tolist() == [9, 2 * 32 + 5, 200]
    assert train.x.flags.c_contiguous


def svhn(tmp_path, monkeypatch, labels, pixels):
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, {"X": pixels, "y": np.array(labels, np.uint8)[:, None]}, do_compression=True)
    entry = tiny_data.file("SVHN/test_32x32.mat", buffer.getvalue())._replace(also=("test_32x32.mat",))
    monkeypatch.setattr(sources, "SVHN_TEST", entry)
    return buffer.getvalue()


def test_svhn(tmp_path, monkeypatch):
    """Catches 10 taken for a class of its own, and images along the wrong axis. Both of the usual places count."""
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    content = svhn(tmp_path, monkeypatch, [10, 1, 9, 5], pixels)
    for path in ("test_32x32.mat", "SVHN/test_32x32.mat"):
        tiny_data.put(tmp_path, path, content)
        loaded = load("svhn", "test", tmp_path)
        assert loaded.y.tolist() == [0, 1, 9, 5]
        assert loaded.x.shape == (4, 32, 32, 3)
        assert loaded.x[2, 3, 4, 1] == pixels[3, 4, 1, 2]
        assert loaded.note == ""
        (tmp_path / path).unlink()


def partial(root, monkeypatch, number=5):
    buffer = io.BytesIO()
    np.save(buffer, np.full((number, 32, 32, 3), 17, np.uint8))
    monkeypatch.setattr(sources, "SVHN_PARTIAL", tiny_data.file("SVHN/partial_images.npy", buffer.getvalue()))
    tiny_data.put(root, "SVHN/partial_images.npy", buffer.getvalue())


def test_partial_svhn_says_so(tmp_path, monkeypatch):
    """Catches a partial set without its note, with labels, or in place of the whole one."""
    partial(tmp_path, monkeypatch)
    loaded = load("svhn", "test", tmp_path)
    assert (loaded.x.shape, loaded.y) == ((5, 32, 32, 3), None)
    assert loaded.note == "partial SVHN: 5 of its training images, not the 26,032 of its test set"
    content = svhn(tmp_path, monkeypatch, [1], np.zeros((32, 32, 3, 1), np.uint8))
    tiny_data.put(tmp_path, "SVHN/test_32x32.mat", content)
    assert (load("svhn", "test", tmp_path).y.tolist(), load("svhn", "test", tmp_path).note) == ([1], "")


def test_partial_svhn_is_nothing_to_train_on(tmp_path, monkeypatch):
    """Catches images without labels handed out as a training set."""
    partial(tmp_path, monkeypatch)
    refused("SVHN/train_32x32.mat: not on this machine", lambda: load("svhn", "train", tmp_path))


def test_digits():
    """Catches parts that overlap or leave something out, and a scale of 255 for values up to 16."""
    pytest.importorskip("sklearn")
    train, test = load("digits"), load("digits", "test")
    assert (train.x.shape, test.x.shape) == ((1437, 8, 8, 1), (360, 8, 8, 1))
    assert train.x[0, 0, :, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]  # the first row of the first digit, a zero
    assert train.y[:10].tolist() == list(range(10))
    assert test.y[-1] == 8
    assert datasets.to_floats(train).max() == 1.0


def test_no_digits_without_scikit_learn(monkeypatch):
    """Catches a missing package reported by a traceback."""
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[sklearn\]'"):
        load("digits")


def test_own_images(tmp_path):
    """Catches a missing axis for colours, Fortran's order misread, another array of the archive taken."""
    grey, colour = np.arange(24, dtype=np.uint8).reshape(2, 3, 4), np.arange(72).reshape(2, 4, 3, 3)
    np.save(tmp_path / "a.npy", grey)
    np.save(tmp_path / "f.npy", np.asfortranarray(colour))
    np.savez(tmp_path / "b.npz", pictures=grey)
    np.savez(tmp_path / "c.npz", y=LONG, x=colour.astype(np.int16))
    for name, right in (("a.npy", grey[..., None]), ("b.npz", grey[..., None]), ("c.npz", colour), ("f.npy", colour)):
        loaded = load(tmp_path / name)
        np.testing.assert_array_equal(loaded.x, right)
        assert (loaded.x.dtype, loaded.y, loaded.name) == (np.uint8, None, name[0])


LONG = np.arange(1000)


def test_to_floats():
    """Catches another scale, a result in float64, and pixels of different images mixed."""
    x = np.array([[[[0], [51]]], [[[255], [102]]]], np.uint8)
    images = datasets.Images(x, None, "a")
    np.testing.assert_allclose(datasets.to_floats(images, flat=True), [[0, 0.2], [1, 0.4]], rtol=rounding(1, "float32"))
    assert datasets.to_floats(images).shape == (2, 1, 2, 1)
    assert datasets.to_floats(images).dtype == np.float32


# -- where they are looked for ------------------------------------------------------------------------------


def test_search_order(tmp_path, monkeypatch):
    """Catches any two of the four places exchanged, and a cache that hides what the user named."""
    places = {place: tmp_path / place for place in ("given", "named", "package", "cache/stein/data")}
    entry = tiny_data.file("A/b.bin", b"x")._replace(packaged=str(places["package"] / "b.bin"))
    (tmp_path / "given").mkdir()
    (tmp_path / "named").mkdir()
    monkeypatch.setenv("STEIN_DATA", str(places["named"]))
    assert sources.find(entry, places["given"]) is None
    for place in reversed(places):
        path = tiny_data.put(places[place], "b.bin" if place == "package" else "A/b.bin", b"x")
        assert sources.find(entry, places["given"]) == path


def test_debian_has_fashion_mnist_only():
    """Catches MNIST, whose files have the same names, taken from the package of FashionMNIST."""
    packaged = {entry.packaged for entry in sources.DATASETS["fashion-mnist"].files}
    assert packaged == {
        f"/usr/share/datasets/fashion-mnist/{part}-ubyte.gz"
        for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    }
    assert not any(entry.packaged for entry in sources.DATASETS["mnist"].files)


def test_every_file_is_pinned_and_capped():
    """Catches an entry without a digest or with a digest twice, and a download that nothing would stop."""
    files = [entry for dataset in sources.DATASETS.values() for entry in dataset.files]
    digests = [digest for entry in files for digest in entry.digests]
    assert len(files) == 4 + 4 + 6 + 2 + 4 * 43
    assert all(any(len(digest) == 64 for digest in entry.digests) for entry in files)
    assert len({entry.path for entry in files}) == len(files)
    assert len({digest for entry in files[:16] for digest in entry.digests}) == 18
    assert all(int(digest, 16) for digest in digests)
    for download in {entry.download for entry in files}:
        assert 0 < download.limit < 200e6
        assert download.urls
        assert all(url.startswith(("https://", "http://")) for url in download.urls)


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "HOME"])
def test_no_home_is_no_crash(monkeypatch, variable):
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert sources.cache_folder() is None
    refused("not on this machine", lambda: load("mnist"))
    refused("HOME and XDG_CACHE_HOME are not set", lambda: datasets.load_images("mnist"))
    monkeypatch.setenv(variable, "/x")
    assert str(sources.cache_folder()).startswith("/x/")


# -- bad files ----------------------------------------------------------------------------------------------


def refused(complaint, action):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is checked below
        action()
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


IDX = {
    "is no idx file of images or labels, it begins with 00 00 0d 03": b"\0\0\x0d\3"
    + tiny_data.idx(tiny_data.PIXELS)[4:],
    "is no idx file of images or labels, it begins with 00 00 08 02": tiny_data.idx(tiny_data.PIXELS[0]),
    "is no idx file of images or labels, it begins with nothing": b"",
    "is no idx file of images or labels, it begins with 00": b"\0",
    "is no idx file of images or labels, a web page": b"\n<!DOCTYPE html><html>",
    "has 27 bytes, its header promises 28": tiny_data.idx(tiny_data.PIXELS)[:-1],
    "has 16 bytes, its header promises 28": tiny_data.idx(tiny_data.PIXELS)[:16],
    "its header promises 4294967311": b"\0\0\x08\3\xff\xff\xff\xff" + 2 * b"\0\0\0\1" + 12 * b"x",
    "has more than the 28 bytes": tiny_data.idx(tiny_data.PIXELS) + b"x",
    "its SHA-256 is": tiny_data.idx(tiny_data.PIXELS[::-1]),
}


@pytest.mark.parametrize("pack", [tiny_data.zipped, bytes], ids=["gz", "plain"])
@pytest.mark.parametrize("complaint", IDX)
def test_bad_idx(mnist, complaint, pack):
    """Catches a file read that is not the right one, or refused without its name."""
    path = tiny_data.put(mnist, "MNIST/raw/train-images-idx3-ubyte.gz", pack(IDX[complaint]))
    refused(f"{path}: ", lambda: load("mnist", "train", mnist))
    refused(complaint, lambda: load("mnist", "train", mnist))


GZIP = {
    "truncated": lambda zipped: zipped[:-9],
    "cut in its header": lambda zipped: zipped[:5],
    "no checksum": lambda zipped: zipped[:-4],
    "another checksum": lambda zipped: zipped[:-8] + b"abcd" + zipped[-4:],
    "garbage after it": lambda zipped: zipped + b"garbage",
    "garbage within": lambda zipped: zipped[:12] + b"\xff\xff\xff" + zipped[15:],
}


@pytest.mark.parametrize("name", GZIP)
def test_bad_gzip(mnist, name):
    """Catches a damaged archive read as far as it goes."""
    zipped = tiny_data.zipped(tiny_data.idx(tiny_data.PIXELS))
    path = tiny_data.put(mnist, "MNIST/raw/train-images-idx3-ubyte.gz", GZIP[name](zipped))
    refused(f"{path}: is truncated or damaged: ", lambda: load("mnist", "train", mnist))


def test_a_bomb_is_not_unpacked(mnist, monkeypatch):
    """Catches decompression that goes on after the cap: 1 GB out of 1 MB."""
    bomb = gzip.compress(bytes(10**8)) * 10
    path = tiny_data.put(mnist, "MNIST/raw/train-images-idx3-ubyte.gz", bomb)
    read = []
    monkeypatch.setattr(
        gzip.GzipFile, "read", lambda self, size=-1, real=gzip.GzipFile.read: read.append(size) or real(self, size)
    )
    refused(f"{path}: has more than the 28 bytes", lambda: load("mnist", "train", mnist))
    assert read == [29]


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [([7, 10], "label 10 of image 1: must be 0 to 9"), ([7], "1 labels for 2 images"), ([1, 2, 3], "3 labels for 2")],
)
def test_bad_labels(mnist, monkeypatch, labels, complaint):
    """Catches a class that no network has, and labels that belong to other images, even in a file that is pinned."""
    contents = tiny_data.mnist() | {"MNIST/raw/train-labels-idx1-ubyte.gz": tiny_data.idx(np.array(labels, np.uint8))}
    monkeypatch.setitem(sources.DATASETS, "mnist", tiny_data.known("mnist", contents))
    for path, content in contents.items():
        tiny_data.put(mnist, path, content)
    refused(f"train-labels-idx1-ubyte.gz: {complaint}", lambda: load("mnist", "train", mnist))


CIFAR = {
    "is no batch of CIFAR-10, 3072 bytes are no multiple of 3073": tiny_data.cifar([1])[1:],
    "is no batch of CIFAR-10, 0 bytes": b"",
    "is no batch of CIFAR-10, a web page": b"<html></html>",
    "label 11 of image 1: must be 0 to 9": tiny_data.cifar([1, 11]),
    "is not the file it should be: its SHA-256 is": tiny_data.cifar([2]),
}


@pytest.mark.parametrize("complaint", CIFAR)
def test_bad_cifar(tmp_path, monkeypatch, complaint):
    """Catches images shifted by a byte, and a wrong batch under a right name."""
    contents = {entry.path: tiny_data.cifar([1, 2, 3]) for entry in sources.DATASETS["cifar10"].files}
    monkeypatch.setitem(sources.DATASETS, "cifar10", tiny_data.known("cifar10", contents))
    for path in contents:
        tiny_data.put(tmp_path, path, CIFAR[complaint])
    refused(f"test_batch.bin: {complaint}", lambda: load("cifar10", "test", tmp_path))


@pytest.mark.parametrize("content", [b"", b"<html>", b"MATLAB 5.0 MAT-file, and more"])
def test_a_strange_mat_never_reaches_its_reader(tmp_path, monkeypatch, content):
    """Catches SciPy's reader run on bytes that nobody vouches for."""
    monkeypatch.setattr(images, "_read_svhn", lambda *_: pytest.fail("was read"))
    path = tiny_data.put(tmp_path, "SVHN/test_32x32.mat", content)
    refused(f"{path}: is ", lambda: load("svhn", "test", tmp_path))


def test_svhn_needs_both_digests(tmp_path, monkeypatch):
    """Catches MD5, for which collisions are cheap, accepted alone."""
    entry = sources.SVHN_TEST
    right = tiny_data.file("a", b"content").digests[0]
    md5 = "9a0364b9e99bb480dd25e1f0284c8555"  # of "content", by md5sum
    sources.check(b"content", entry._replace(digests=(md5, right)), "a")
    refused(
        "a: is not the file it should be: its SHA-256",
        lambda: sources.check(b"content", entry._replace(digests=(md5, 64 * "0")), "a"),
    )
    refused(
        "a: is not the file it should be: its MD5",
        lambda: sources.check(b"content", entry._replace(digests=(32 * "0", right)), "a"),
    )


def saved(array, **options):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array), **options)
    return buffer.getvalue()


GREY = np.zeros((2, 3, 4), np.uint8)
OWN = {
    "a.npy: is no NumPy array: EOF": b"",
    "a.npy: is no NumPy array: is a web page": b"<html>",
    "a.npy: is no NumPy array: the magic string": b"\x80\x04}\x94. and more",
    "a.npy: holds Python objects": saved(np.array([{}], object)),
    "a.npy: type float64: must be uint8": saved(np.zeros((2, 3, 4))),
    "a.npy: type bool: must be uint8": saved(np.zeros((2, 3, 4), bool)),
    "a.npy: 256 at [1, 2, 3, 0]: pixels must be 0 to 255": saved(
        np.where(np.arange(24).reshape(2, 3, 4) == 23, 256, 0)
    ),
    "a.npy: -1 at [0, 0, 0, 0]": saved(np.full((2, 3, 4), -1)),
    "a.npy: shape (2, 3): must be (n, height, width)": saved(GREY[..., 0]),
    "a.npy: shape (): must be": saved(np.uint8(1)),
    "a.npy: shape (0, 3, 4): must be": saved(GREY[:0]),
    "a.npy: shape (2, 3, 8, 8): must be (n, height, width) or (n, height, width, 1 or 3); transpose": saved(
        np.zeros((2, 3, 8, 8), np.uint8)
    ),
    "a.npy: shape (2, 8, 8, 2): must be": saved(np.zeros((2, 8, 8, 2), np.uint8)),
    "a.npy: shape (1, 2, 3, 4, 1): must be": saved(np.zeros((1, 2, 3, 4, 1), np.uint8)),
    "a.npy: has 23 bytes of data, its header promises 24": saved(GREY)[:-1],
    "a.npy: has 25 bytes of data, its header promises 24": saved(GREY) + b"x",
    "its header promises 9000000000000": saved(GREY).replace(b"(2, 3, 4), }            ", b"(3000000, 3000000, 1), }"),
    "its header promises -24": saved(GREY).replace(b"(2, 3, 4), } ", b"(-2, 3, 4), }"),
}


@pytest.mark.parametrize("complaint", OWN)
def test_bad_own_images(tmp_path, complaint):
    """Catches objects unpickled, memory taken because a header says so, floats cut off to zeros."""
    path = tiny_data.put(tmp_path, "a.npy", OWN[complaint])
    refused(complaint, lambda: load(path))
    refused(str(path), lambda: load(path))


def archive(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members:
            file.writestr(name, content)
    return path


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_bad_archives(tmp_path):
    """Catches a bomb unpacked, the second of two arrays of one name taken, a choice made for the user."""
    path = tmp_path / "a.npz"
    good = saved(GREY)
    archive(path, [("x.npy", good), ("x.npy", good)])
    refused("a.npz: two arrays are called 'x.npy'", lambda: load(path))
    archive(path, [("a.npy", good), ("b.npy", good)])
    refused("a.npz: no array x; it has a.npy, b.npy", lambda: load(path))
    archive(path, [])
    refused("a.npz: no array x; it has none", lambda: load(path))
    archive(path, [("x.npy", saved(np.zeros((1000, 32, 32), np.uint8)))], zipfile.ZIP_DEFLATED)
    refused("unpack to 1024128: more than 100 times", lambda: load(path))
    path.write_bytes(archive(path, [("x.npy", good)]).read_bytes()[:-30])
    refused("a.npz: cannot be read: File is not a zip file", lambda: load(path))
    broken = bytearray(archive(path, [("x.npy", good)]).read_bytes())
    broken[len(good)] ^= 1
    path.write_bytes(broken)
    refused("a.npz: cannot be read: Bad CRC-32", lambda: load(path))
    archive(path, [("x.npy", b"\x80\x04pickle")])
    refused("a.npz: x.npy: is no NumPy array", lambda: load(path))
    refused("nothing.npz: no such file", lambda: load(tmp_path / "nothing.npz"))


@pytest.mark.parametrize(("complaint", "action"), [
    ("minst: no such data set; did you mean 'mnist'?", lambda root: load("minst")),
    ("imagenet-22k: no such data set; there are fashion-mnist, mnist", lambda root: load("imagenet-22k")),
    ("part = 'val': 'train' or 'test'", lambda root: inspect.unwrap(datasets.load_images)("mnist", "val")),
    ("uci-yacht: has no images; load_uci reads it", lambda root: load("uci-yacht")),
    ("MNIST/raw/train-images-idx3-ubyte.gz: not on this machine; give --data-dir", lambda root: load("mnist")),
    ("--data-dir = /nowhere: no such directory", lambda root: load("mnist", root="/nowhere")),
    ("split = 20: must be 0 to 19", lambda root: datasets.load_uci("yacht", 20)),
    ("uci-boat: no such data set", lambda root: datasets.load_uci("boat", 0)),
])  # fmt: skip
def test_bad_requests(tmp_path, complaint, action):
    refused(complaint, lambda: action(tmp_path))


def test_a_data_root_that_is_gone(monkeypatch):
    """Catches a mistake in STEIN_DATA answered by a download."""
    monkeypatch.setenv("STEIN_DATA", "/nowhere")
    refused("STEIN_DATA = /nowhere: no such directory", lambda: load("mnist"))


# -- tables -------------------------------------------------------------------------------------------------

TABLE = {
    "data.txt": b"1 \t10 100 \n2\t20 200\n3 30 300\n\n",
    "index_features.txt": b"0\n2\n",
    "index_target.txt": b"1\n",
    "index_train_4.txt": b"2\n0\n",
    "index_test_4.txt": b"1\n",
}


@pytest.fixture
def yacht(tmp_path, monkeypatch):
    files = tuple(tiny_data.file(f"UCI/yacht/{name}", content) for name, content in TABLE.items())
    monkeypatch.setitem(sources.DATASETS, "uci-yacht", sources.DATASETS["uci-yacht"]._replace(files=files))
    for entry, content in zip(files, TABLE.values(), strict=True):
        tiny_data.put(tmp_path, entry.path, content)
    return tmp_path


def test_uci(yacht):
    """Catches the target among the inputs, training and test rows exchanged, rows in another order."""
    train, test = datasets.load_uci("yacht", 4, yacht, offline=True)
    assert train.x.tolist() == [[3, 300], [1, 100]]
    assert train.y.tolist() == [30, 10]
    assert (test.x.tolist(), test.y.tolist()) == ([[2, 200]], [20])
    assert train.x.dtype == np.float64


def test_a_changed_table_is_refused(yacht):
    """Catches a table read with a number or a split that somebody changed."""
    for name in ("data.txt", "index_test_4.txt"):
        path = tiny_data.put(yacht, f"UCI/yacht/{name}", TABLE[name].replace(b"1", b"2", 1))
        refused(f"{path}: is not the file it should be", lambda: datasets.load_uci("yacht", 4, yacht, offline=True))
        path.write_bytes(TABLE[name])


# -- the catalogue ------------------------------------------------------------------------------------------


def test_verify(mnist):
    """Catches a broken file called right, one not looked at, or the name of another one in the complaint."""
    assert list(catalogue.verify(["mnist"], mnist)) == [f"mnist: right, in {mnist}/MNIST/raw"]
    assert list(catalogue.verify([], mnist)) == [f"mnist: right, in {mnist}/MNIST/raw"]
    for path in sorted(mnist.rglob("*.gz")):
        good = path.read_bytes()
        path.write_bytes(tiny_data.zipped(gzip.decompress(good)[:-1] + b"\xff"))
        refused(f"{path}: is not the file it should be", lambda: list(catalogue.verify([], mnist)))
        path.write_bytes(good)
    refused("cifar10: not here; `stein data fetch cifar10`", lambda: list(catalogue.verify(["cifar10"], mnist)))
    refused("no data set is here", lambda: list(catalogue.verify([], mnist.parent)))


def test_state(mnist, tmp_path):
    """Catches a data set called here that is not, or is not whole."""
    entry = sources.DATASETS["mnist"]
    assert catalogue.state(entry, mnist) == f"in {mnist}/MNIST/raw"
    next(mnist.rglob("*.gz")).unlink()
    assert catalogue.state(entry, mnist) == f"3 of 4 files in {mnist}/MNIST/raw"
    assert catalogue.state(entry, None) == "not here"


# -- the real ones ------------------------------------------------------------------------------------------

ROOT = os.environ.get("STEIN_DATA")
real = pytest.mark.skipif(not ROOT, reason="needs the real data sets: set STEIN_DATA to a directory that has them")


@real
@pytest.mark.parametrize(
    ("name", "shape", "labels", "mean", "std"),
    [  # means and deviations over the training set as everybody quotes them
        ("mnist", (60_000, 28, 28, 1), [5, 0, 4, 1, 9], [0.1307], [0.3081]),
        ("fashion-mnist", (60_000, 28, 28, 1), [9, 0, 0, 3, 0], [0.2860], [0.3530]),
        ("cifar10", (50_000, 32, 32, 3), [6, 9, 9, 4, 1], [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    ],
)
def test_real_images(name, shape, labels, mean, std):
    """Catches colours or parts exchanged, another scale, labels shifted against the images."""
    train, test = (datasets.load_images(name, part, ROOT, offline=True) for part in ("train", "test"))
    assert (train.x.shape, test.x.shape) == (shape, (10_000, *shape[1:]))
    assert train.y[:5].tolist() == labels
    assert np.bincount(test.y).tolist() == [1000] * 10 or name == "mnist"
    value = np.arange(256) / 255
    blocks = np.array_split(train.x, 50)  # NumPy counts whole numbers of 8 bytes
    for colour in range(shape[-1]):
        counts = sum(np.bincount(block[..., colour].ravel(), minlength=256) for block in blocks)
        share = counts / counts.sum()
        assert abs(share @ value - mean[colour]) < 6e-5
        assert abs((share @ (value - share @ value) ** 2) ** 0.5 - std[colour]) < 6e-5


@real
def test_real_partial_svhn():
    """Catches the note of a partial set lost."""
    loaded = datasets.load_images("svhn", "test", ROOT, offline=True)
    assert (loaded.x.shape[1:], loaded.y is None) == ((32, 32, 3), "partial" in loaded.note)


@real
@pytest.mark.parametrize(
    ("name", "rows", "inputs", "targets"),
    [
        ("concrete", 1030, 8, (2.33, 82.6)),
        ("energy", 768, 8, (6.01, 43.1)),
        ("wine-quality-red", 1599, 11, (3, 8)),
        ("yacht", 308, 6, (0.01, 62.42)),
    ],
)
def test_real_tables(name, rows, inputs, targets):
    """Catches rows in both parts or in none, an input taken for the target, inputs and targets of different rows."""
    seen = set()
    for split in range(uci.SPLITS):
        train, test = datasets.load_uci(name, split, ROOT, offline=True)
        assert (train.x.shape[1], test.x.shape[1], len(train.x) + len(test.x)) == (inputs, inputs, rows)
        both = np.concatenate([train.y, test.y])
        assert (both.min(), both.max()) == targets
        assert abs(len(test.x) - rows / 10) <= 1
        seen.add(tuple(sorted(map(tuple, np.column_stack([np.concatenate([train.x, test.x]), both])))))
    assert len(seen) == 1  # the same rows in every split
