"""Keys that are valid alone but not together. A key without effect is rejected too."""

from collections.abc import Iterator

from stein import methods
from stein.runs.keys import KEYS
from stein.runs.schema import IMAGES, UCI, WITH_WEIGHT_DECAY, Config, Data, Likelihood, Method
from stein.runs.wording import shown

SOURCES = ("box", "noise", "mixture", "augmented", "patches")
TABLES = (".csv", ".parquet", ".arrow", ".feather")
_TABLES = ", ".join(TABLES)
RESNET_LAYERS = 5  # that have names
FILES = (*TABLES, ".npy", ".npz")  # of unlabelled inputs


def of(config: Config) -> Iterator[tuple[str, str]]:
    """Keys that are valid alone but not together."""
    yield from _data_conflicts(config.data)
    yield from _of_stream(config)
    if config.model.name == "given" and config.data.name != "arrays":
        yield "model.name", "got 'given', which an estimator of stein.sklearn writes; must be mlp or resnet32"
    yield from _of_images(config)
    yield from _of_likelihood(config.likelihood)
    yield from _of_method(config)
    train, optimiser, annealing = config.train, config.optimiser, config.annealing
    for name, every in (("evaluation.every", config.evaluation.every), ("checkpoints.every", config.checkpoints.every)):
        if every % train.log_every:
            nearest = max(1, round(every / train.log_every)) * train.log_every
            yield name, f"got {every}; must be a multiple of train.log_every = {train.log_every}, such as {nearest}"
    if optimiser.warmup_steps >= train.steps:
        yield "optimiser.warmup_steps", f"got {optimiser.warmup_steps}; must be below train.steps = {train.steps}"
    if optimiser.weight_decay and optimiser.name not in WITH_WEIGHT_DECAY:
        yield "optimiser.weight_decay", f"{optimiser.name} has none; must be 0, or use {', '.join(WITH_WEIGHT_DECAY)}"
    yield from _cycles(config)
    if annealing.name != "none":
        least = max(2, annealing.cycles if annealing.name == "cyclical" else 0)
        if not least <= config.annealing_steps <= train.steps:
            yield "annealing.steps", f"is {config.annealing_steps}; must be from {least} to train.steps = {train.steps}"
    held_out = config.data.test_fraction or config.data.test_file or config.data.split_column
    if config.evaluation.summary and not (config.is_table and held_out):
        yield "evaluation.summary", "is for tables with a test part; must be false, or data.test_fraction above 0"
    if config.evaluation.summary and not (config.validation_fraction or config.data.split_column):
        yield "evaluation.summary", "needs validation points; must be false, or data.validation_fraction above 0"
    for name, wanted in (("checkpoints.best", config.checkpoints.best), ("train.early_stop", train.early_stop)):
        if wanted and config.data.reading == "checked" and not (config.validation_fraction or config.data.split_column):
            yield name, "needs validation points; must be off, or data.validation_fraction above 0"
        if wanted and not config.evaluation.every:
            yield name, "needs evaluations during training; must be off, or evaluation.every above 0"


def _data_conflicts(data: Data) -> Iterator[tuple[str, str]]:
    sources = [key for key in ("name", "file", "inputs") if getattr(data, key)]
    if bool(data.inputs) != bool(data.targets):
        given, missing = ("inputs", "targets") if data.inputs else ("targets", "inputs")
        yield f"data.{missing}", f"is missing; data.{given} is given and both are needed"
    if not sources:
        names = ", ".join(KEYS["data"]["name"].options)
        yield "data.name", f"no data; must be one of {names}, or give data.file, or data.inputs and data.targets"
    if len(sources) > 1:
        yield f"data.{sources[1]}", f"data.{sources[0]} is given too; must be one of data.name, data.file, data.inputs"
    tables = (".npz", *TABLES)
    allowed = {"file": tables, "test_file": tables, "inputs": (".npy",), "targets": (".npy",)}
    for key, suffixes in allowed.items():
        path = getattr(data, key)
        if path and not path.lower().endswith(suffixes):
            yield f"data.{key}", f"got {shown(path)}; must end in {' or '.join(suffixes)}"
    has_columns = data.file.lower().endswith(TABLES)
    if has_columns and not data.target:
        yield "data.target", "is missing; must be the name of the target column"
    if data.target and not has_columns:
        yield "data.target", f"must be empty: only {_TABLES} files have named columns"
    if data.test_file and not (data.file or data.inputs):
        yield "data.test_file", "goes with data.file, or with data.inputs and data.targets"
    if has_columns and data.test_file and not data.test_file.lower().endswith(TABLES):
        yield "data.test_file", f"must end in {_TABLES}, as data.file: its columns are found by name"
    yield from _roles(data, has_columns)
    if data.unskew and data.standardise is False:
        yield "data.unskew", "bends standardised inputs; must be false, or data.standardise true"
    if data.split_column and data.validation_fraction != "auto":
        yield "data.split_column", "says which rows are held out; data.validation_fraction must not be given too"
    if data.split and data.name not in UCI:
        yield "data.split", f"is for UCI tables; data.name must be one of {', '.join(UCI)}"
    if data.folder and data.name not in (*IMAGES, *UCI):
        yield "data.folder", f"is for sets by name; data.name must be one of {', '.join((*IMAGES, *UCI))}"
    if data.name not in IMAGES:
        for key in ("classes", "most_test", "validate"):
            if getattr(data, key):
                yield f"data.{key}", f"is for images by name; data.name must be one of {', '.join(IMAGES)}"
    if len(set(data.classes)) != len(data.classes):
        yield "data.classes", f"got {list(data.classes)}; a class is there twice"


def _of_stream(config: Config) -> Iterator[tuple[str, str]]:
    data = config.data
    given = [key for key, known in KEYS["data"].items() if getattr(data, key) != known.default]
    if not data.stream:
        for key in ("head_rows", "test_rows", "shuffle_rows"):
            if key in given:
                yield f"data.{key}", "is for streams; must be left out, or data.stream = true"
        return
    if not (data.inputs or data.file.lower().endswith(".parquet")):
        yield (
            "data.stream",
            "must be false: only .npy pairs (data.inputs, data.targets) and .parquet files are streams",
        )
    for key in ("test_file", "test_fraction", "validation_fraction", "split_column", "time_column", "group_column"):
        if key in given:
            yield f"data.{key}", "must be left out: the last data.test_rows rows of a stream are held out"
    for key in ("text_columns", "impute"):
        if key in given:
            yield f"data.{key}", "must be left out: the inputs of a stream are numbers without gaps"
    if data.inputs and "shuffle_rows" in given:
        yield (
            "data.shuffle_rows",
            "must be left out: all rows of .npy files are shuffled together",
        )
    if data.reading == "as-before":
        yield "data.reading", "must be checked: stein 0.1 had no streams"
    if config.validation_fraction and not data.test_rows:
        yield "data.test_rows", "got 0; must be at least 1: the validation part has as many rows"
    if config.evaluation.summary:
        yield "evaluation.summary", "compares with models that need all rows in memory; must be false for a stream"
    if config.train.batch_size == 0:
        yield "train.batch_size", "got 0; must be at least 1: a stream does not fit in memory"
    if config.method.measurement == "independent":
        yield "method.measurement", "got 'independent'; must be batch: a stream has one batch per step"


def _roles(data: Data, has_columns: bool) -> Iterator[tuple[str, str]]:
    """The columns of a table that are no inputs."""
    splits = [key for key in ("split_column", "time_column", "group_column") if getattr(data, key)]
    roles = {key: (getattr(data, key),) for key in splits}
    roles |= {key: getattr(data, key) for key in ("id_columns", "text_columns") if getattr(data, key)}
    if not has_columns:
        for key in (*roles, *(["impute"] if data.impute else [])):
            yield f"data.{key}", f"must be left out: only {_TABLES} files have named columns"
    seen = {data.target: "target"}
    for key, names in roles.items():
        for name in names:
            if name in seen and {key, seen[name]} != {"group_column", "id_columns"}:
                yield f"data.{key}", f"got {shown(name)}; must not be data.{seen[name]} too"
            seen[name] = key
    given = [f"data.{key}" for key in (*splits, *(["test_file"] if data.test_file else []))]
    if len(given) > 1:
        yield given[0], f"says which rows are held out; {given[1]} must not be given too"
    if data.reading == "as-before":
        for key in (*(key for key in roles if key != "split_column"), *(["impute"] if data.impute else [])):
            yield f"data.{key}", "must be left out, or data.reading = 'checked'"


def _of_images(config: Config) -> Iterator[tuple[str, str]]:
    """The keys of residual networks and of augmented batches."""
    for key in ("blocks", "filters", "stride"):
        if config.model.name != "resnet32" and getattr(config.model, key) != KEYS["model"][key].default:
            yield f"model.{key}", "is for model.name = 'resnet32'; must be left out"
    for key in ("crop", "flip"):
        if getattr(config.train, key) and config.model.name == "mlp":
            yield f"train.{key}", "is for images; must be left out, or model.name = 'resnet32': an mlp sees rows"
        if getattr(config.train, key) and config.data.stream:
            yield f"train.{key}", "is for images in memory; must be left out, or data.stream false"


def _of_likelihood(section: Likelihood) -> Iterator[tuple[str, str]]:
    known = KEYS["likelihood"]
    if section.degrees != known["degrees"].default and section.name != "student-t":
        yield "likelihood.degrees", "is for likelihood.name = 'student-t'; must be left out"
    if section.rate != known["rate"].default and section.name != "poisson":
        yield "likelihood.rate", "is for likelihood.name = 'poisson'; must be left out"
    if section.sigma != "auto" and section.name == "poisson":
        yield "likelihood.sigma", "the spread of counts follows from their rate; must be left out"
    if section.sigma == "input-dependent" and section.name != "student-t":
        yield "likelihood.sigma", "is for student-t; for the gaussian use likelihood.name = 'heteroscedastic'"


def _of_method(config: Config) -> Iterator[tuple[str, str]]:
    """The method keys that contradict others or have no effect, each with an error message."""
    method, chosen = config.method, methods.lookup(config.method.name)
    named = None if method.repulsion == "auto" else method.repulsion
    for setting, complaint in methods.refusals(chosen, method.stochastic, method.noise, named):
        yield f"method.{setting}", complaint
    yield from _repulsion(method)
    yield from _freezing(config)
    if method.measurement != "batch" and chosen.functional:
        yield (
            "method.measurement",
            f"got {method.measurement!r}; must be batch: {method.name} works on the gradient's batch",
        )
    yield from _compares(config)
    if chosen.compares == "probabilities" and config.likelihood.name not in ("categorical", "auto"):
        yield "method.name", f"{method.name} compares probabilities; likelihood.name must be categorical or auto"
    if method.measurement_subset:
        size = 0 if config.train.batch_size == "auto" else config.train.batch_size  # with few rows, auto takes all
        if chosen.repulsion is None:
            yield "method.measurement_subset", f"{method.name} looks at the whole batch, or at none; must be 0"
        if method.measurement == "extra":
            yield "method.measurement_subset", "is of the batch, which is not measured; must be 0"
        if not size and method.measurement == "batch":
            yield (
                "method.measurement_subset",
                "would be the first rows of the data in every step; must be 0, or train.batch_size above 0, "
                "or method.measurement independent",
            )
        if size and method.measurement_subset > size:
            yield (
                "method.measurement_subset",
                f"got {method.measurement_subset}; must be at most train.batch_size = {size}",
            )
    if config.likelihood.center_logits:
        if config.likelihood.name not in ("categorical", "auto"):
            yield (
                "likelihood.center_logits",
                f"likelihood.name = {config.likelihood.name!r} has no logits; must be false",
            )
        if _compared(method) not in ("outputs", *methods.FEATURES):
            yield "likelihood.center_logits", f"{method.name} does not compare logits; must be false"
    yield from _momentum(method)
    yield from _draws(config)
    yield from _chains(config)
    yield from _gaussian_process(config)
    yield from _extra_points(method)


def _compared(method: Method) -> str | None:
    """What the functional kernel compares."""
    return methods.lookup(method.name).compares if method.compares == "auto" else method.compares


def _compares(config: Config) -> Iterator[tuple[str, str]]:
    method, chosen = config.method, methods.lookup(config.method.name)
    if method.principal_axes and chosen.compares != "label-gradients":
        yield "method.principal_axes", f"{method.name} has no gradients of labels; must be false, or use forde"
    if method.compares != "auto":
        yield from _other_features(config)
    if _compared(method) == "label-gradients" and (method.measurement != "batch" or method.extra_points):
        key = "extra_points" if method.extra_points else "measurement"
        yield f"method.{key}", "label-gradients need labels; must be left out"


def _other_features(config: Config) -> Iterator[tuple[str, str]]:
    method, chosen, value = config.method, methods.lookup(config.method.name), config.method.compares
    if chosen.compares != "outputs" or chosen.functional:
        what = f"{chosen.compares} only" if chosen.compares else "no functions"
        yield "method.compares", f"{method.name} compares {what}; must be auto"
    if value == "probabilities" and config.likelihood.name not in ("categorical", "auto"):
        yield "method.compares", "got 'probabilities'; likelihood.name must be categorical or auto"
    if config.model.name == "given":
        return  # a network given in Python has names of its own
    layers = len(config.model.hidden) if config.model.name == "mlp" else RESNET_LAYERS
    known = ("outputs", "probabilities", *methods.FEATURES, *(f"hidden-{number}" for number in range(1, layers + 1)))
    if value not in known:
        yield "method.compares", f"got {shown(value)}; must be auto, {', '.join(known)}"


def _repulsion(method: Method) -> Iterator[tuple[str, str]]:
    named = None if method.repulsion == "auto" else method.repulsion
    exact = methods.is_exact(methods.lookup(method.name), method.stochastic, named)
    for key in ("repulsion_energy", "repulsion_directions", "repulsion_probe"):
        if getattr(method, key) != KEYS["method"][key].default and not exact:
            yield f"method.{key}", "is for the exact repulsion; use the default, or method.repulsion = 'exact'"
    cut, whole = ("directions", "0") if method.repulsion_directions else ("energy", "1 or auto")
    truncated = method.repulsion_directions > 0 or method.repulsion_energy not in ("auto", 1)
    if method.repulsion_probe and not truncated:
        yield (
            "method.repulsion_probe",
            "adds what is left out; must be false, or give method.repulsion_energy below 1 or repulsion_directions",
        )
    if truncated and method.stochastic and method.noise == "cholesky" and not method.repulsion_probe:
        yield (
            f"method.repulsion_{cut}",
            f"got {getattr(method, f'repulsion_{cut}')}; must be {whole}, or method.repulsion_probe true: with noise a "
            "truncated repulsion biases the sampler",
        )


def _freezing(config: Config) -> Iterator[tuple[str, str]]:
    method, steps = config.method, config.train.steps
    chosen = methods.lookup(method.name)
    if method.freeze_bandwidth_after:
        if not chosen.kernels:
            yield "method.freeze_bandwidth_after", f"{method.name} has no kernel; must be 0"
        if chosen.compares == "label-gradients":
            yield "method.freeze_bandwidth_after", f"{method.name} has a bandwidth per point; must be 0"
        if method.bandwidth != "median":
            yield "method.freeze_bandwidth_after", "method.bandwidth is a number and never moves; must be 0"
    if method.freeze_preconditioner_after:
        noisy = methods.is_noisy(chosen, method.stochastic)
        if chosen.preconditioner is None or not noisy:
            yield (
                "method.freeze_preconditioner_after",
                f"{method.name}{'' if noisy else ' without noise'} has no preconditioner; must be 0",
            )
        if method.noise_place != "langevin":
            yield "method.freeze_preconditioner_after", "only Langevin steps have a preconditioner; must be 0"
    for key in ("freeze_bandwidth_after", "freeze_preconditioner_after"):
        if getattr(method, key) >= steps:
            yield f"method.{key}", f"got {getattr(method, key)}; must be below train.steps = {steps}"


def _cycles(config: Config) -> Iterator[tuple[str, str]]:
    method, optimiser, steps = config.method, config.optimiser, config.train.steps
    if optimiser.schedule == "cyclical":
        if optimiser.cycles > steps:
            yield "optimiser.cycles", f"got {optimiser.cycles}; must be at most train.steps = {steps}"
        if optimiser.warmup_steps:
            yield "optimiser.warmup_steps", "every cycle begins with its longest step; must be 0"
    for name in ("optimiser.cycles", "method.exploration"):
        section, _, key = name.partition(".")
        given = getattr(getattr(config, section), key) != KEYS[section][key].default
        if given and optimiser.schedule != "cyclical":
            yield name, "is for optimiser.schedule = 'cyclical'; must be left out"
    if method.exploration and not methods.is_noisy(methods.lookup(method.name), method.stochastic):
        yield "method.exploration", f"{method.name} without noise has none to turn off; must be 0"


def _momentum(method: Method) -> Iterator[tuple[str, str]]:
    if methods.lookup(method.name).dynamics == "hamiltonian":
        if method.noise_place != "langevin":
            yield "method.noise_place", f"{method.name} has momenta of its own; must be langevin"
    elif method.friction != KEYS["method"]["friction"].default:
        yield "method.friction", f"{method.name} has no momentum; must be left out, or use sghmc"


def _draws(config: Config) -> Iterator[tuple[str, str]]:
    method, train = config.method, config.train
    needed = method.burn_in + method.draws * method.thin
    if method.draws and not methods.is_sampler(methods.lookup(method.name), method.stochastic):
        yield "method.draws", f"{method.name} without noise is no sampler; must be 0"
    if method.draws and train.on_nan == "resample":
        yield "train.on_nan", "got 'resample'; must be freeze or stop: draws of a new chain are not those of the old"
    if method.draws and needed > train.steps:
        yield (
            "train.steps",
            (f"got {train.steps}; must be at least {needed}: method.burn_in + method.draws x method.thin"),
        )
    for key in ("thin", "burn_in"):
        if getattr(method, key) != KEYS["method"][key].default and not method.draws:
            yield f"method.{key}", "is for method.draws above 0; must be left out"


def _chains(config: Config) -> Iterator[tuple[str, str]]:
    """What the chains of mile need."""
    method, train = config.method, config.train
    if methods.lookup(method.name).dynamics != "microcanonical":
        if method.tuning_steps:
            yield "method.tuning_steps", f"{method.name} tunes nothing; must be left out, or use mile"
        if method.energy_variance != KEYS["method"]["energy_variance"].default:
            yield "method.energy_variance", f"{method.name} tunes nothing; must be left out, or use mile"
        return
    if not method.draws:
        yield "method.draws", f"got 0; must be at least 1: the draws of its chains are the ensemble of {method.name}"
    if method.tuning_steps < 100:
        yield "method.tuning_steps", f"got {method.tuning_steps}; must be at least 100: {method.name} tunes its chains"
    if method.burn_in < method.tuning_steps:
        yield (
            "method.burn_in",
            f"got {method.burn_in}; must be at least method.tuning_steps = {method.tuning_steps}, its last part",
        )
    if train.batch_size not in ("auto", 0) or config.data.stream:
        key = "data.stream" if config.data.stream else "train.batch_size"
        yield key, f"{method.name} needs all points in every step; must be {'false' if config.data.stream else 0}"
    if train.early_stop:
        yield "train.early_stop", f"{method.name} draws at the end; must be 0"


def _gaussian_process(config: Config) -> Iterator[tuple[str, str]]:
    method = config.method
    if method.functional_prior in ("gaussian-process", "infinite-width"):
        if not methods.lookup(method.name).functional:
            names = ", ".join(name for name, known in methods.METHODS.items() if known.functional)
            yield "method.functional_prior", f"{method.name} has a prior over weights; must be none, or use {names}"
        if method.prior_draws != "auto":
            yield "method.prior_draws", "a Gaussian process needs no draws; must be auto"
    if method.functional_prior == "gaussian-process":
        return
    if method.functional_prior == "infinite-width" and (
        (config.model.name, config.model.activation) != ("mlp", "relu") or config.prior.name == "laplace"
    ):
        yield (
            "method.functional_prior",
            "infinite-width is known for an mlp with relu and a normal or fan-in prior; use moment-matched for others",
        )
    for key in ("gp_scale", "gp_length"):
        if getattr(method, key) != KEYS["method"][key].default:
            yield f"method.{key}", "is for method.functional_prior = 'gaussian-process'; must be left out"


def _extra_points(method: Method) -> Iterator[tuple[str, str]]:
    chosen = methods.lookup(method.name)
    if chosen.unlabelled and method.measurement == "independent":
        yield "method.measurement", f"got 'independent'; must be left out: {method.name} repels at extra points only"
    if (chosen.unlabelled or method.measurement == "extra") and not method.extra_points:
        yield "method.extra_points", "got 0; must be at least 1: members are compared at extra points only"
    if method.extra_points:
        if chosen.compares is None:
            yield "method.extra_points", f"{method.name} compares no functions; must be 0"
        if chosen.functional and method.functional_prior in ("none", "auto"):
            yield (
                "method.extra_points",
                f"nothing holds {method.name} where there is no label; must be 0, or name method.functional_prior",
            )
    elif method.extra_source != KEYS["method"]["extra_source"].default:
        yield "method.extra_source", "is for method.extra_points above 0; must be left out"
    if method.extra_source not in SOURCES and not method.extra_source.lower().endswith(FILES):
        yield (
            "method.extra_source",
            f"got {method.extra_source!r}; must be {', '.join(SOURCES)}, or a file: {', '.join(FILES)}",
        )
