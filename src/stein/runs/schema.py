"""The schema of a run's config: the type, limits and meaning of every key, written once.

The checks of :mod:`stein.runs.configs`, ``stein train --help`` and the file that ``stein config init`` writes are
made from these classes. No jax here: help and errors must be fast. The names of methods are those of
:mod:`stein.methods`; names that belong to registries with jax (noises, optimisers ...) are repeated as literals, and a
test checks that they agree.
"""

from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct

from stein import methods


def about(meaning: str, **limits: Any) -> Meta:
    """The meaning of a key, and its limits."""
    return Meta(description=meaning, **limits)


Seed = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Steps = Annotated[int, Meta(ge=1, le=10**9)]  # the step counter has 32 bits
StepsOrNone = Annotated[int, Meta(ge=0, le=10**9)]
Positive = Annotated[float, Meta(gt=0)]
Text = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f-\x9f\ud800-\udfff]*\Z", max_length=4096)]

ImageName = Literal["digits", "fashion-mnist", "mnist", "cifar10"]
IMAGES = get_args(ImageName)
UciName = Literal["uci-concrete", "uci-energy", "uci-wine-quality-red", "uci-yacht"]
UCI = get_args(UciName)
WITH_WEIGHT_DECAY = ("adamw", "lamb", "lion")


class Data(Struct, frozen=True):
    """The data: a built-in set by name, one file, or a pair of files."""

    name: Annotated[
        Literal["", "regression-1d", "classification-2d", ImageName, UciName, "arrays"],
        about(
            "a data set by name; `stein data list` shows where images and UCI tables are; arrays: given to an "
            "estimator of stein.sklearn in Python, and not kept"
        ),
    ] = ""
    file: Annotated[
        Text, about(".csv, .parquet, .arrow or .feather, or .npz with arrays x and y; paths are relative to the config")
    ] = ""
    inputs: Annotated[Text, about(".npy file of the inputs, one row per point")] = ""
    targets: Annotated[Text, about(".npy file of the targets, used with inputs")] = ""
    target: Annotated[Text, about("name of the target column of a table with named columns")] = ""
    test_file: Annotated[Text, about("file of test points with the columns of data.file; none are held out")] = ""
    split_column: Annotated[Text, about("column with train, validation or test (or 0 and 1: train and test)")] = ""
    time_column: Annotated[
        Text,
        about("column of dates or numbers: the latest rows are the test part; of dates the season is also an input"),
    ] = ""
    group_column: Annotated[Text, about("column of groups: no group is in two parts; it is no input")] = ""
    id_columns: Annotated[
        tuple[Text, ...], about("columns that name the rows: no inputs, copied to predictions", max_length=100)
    ] = ()
    text_columns: Annotated[
        tuple[Text, ...], about("columns that are read as text, also if they look like numbers", max_length=1000)
    ] = ()
    impute: Annotated[
        bool, about("fill missing inputs with medians and most frequent levels, and add inputs that mark them")
    ] = False
    stream: Annotated[
        bool,
        about("read batches from .npy pairs or .parquet during training, for data that do not fit in memory"),
    ] = False
    head_rows: Annotated[
        int, about("first rows of a stream, from which scales and classes are learned", ge=2, le=10**9)
    ] = 10_000
    test_rows: Annotated[
        int,
        about(
            "last rows of a stream, held out for evaluation; if validation is needed, as many before them are its part",
            ge=0,
            le=10**9,
        ),
    ] = 10_000
    shuffle_rows: Annotated[
        int, about("rows of a .parquet stream that are shuffled together, in whole row groups", ge=1, le=10**9)
    ] = 2**17
    split: Annotated[int, about("number of the standard split of a UCI table, of 20", ge=0, le=19)] = 0
    test_fraction: Annotated[float, about("fraction of the points held out for evaluation", ge=0, lt=1)] = 0.1
    validation_fraction: Annotated[
        Literal["auto"] | Annotated[float, Meta(ge=0, lt=1)],
        about(
            "fraction of the training points held out for early stopping, the best checkpoint and the calibration of "
            "a summary; auto: 0.1 if any is on, else 0"
        ),
    ] = "auto"
    standardise: Annotated[
        Literal["auto"] | bool,
        about("shift and scale each input to mean 0 and standard deviation 1; auto: true for tables"),
    ] = "auto"
    unskew: Annotated[
        bool, about("also bend skewed inputs, each by its own power (Yeo-Johnson); needs standardised inputs")
    ] = False
    standardise_targets: Annotated[
        Literal["auto"] | bool,
        about("the same for regression targets; metrics keep the original units; auto: true for tables"),
    ] = "auto"
    reading: Annotated[
        Literal["checked", "as-before"],
        about("checked: ambiguous targets are rejected, splits are stratified; as-before: as in stein 0.1"),
    ] = "checked"
    seed: Annotated[Seed, about("seed of the held-out points, and of built-in sets")] = 42
    folder: Annotated[Text, about("directory searched first for named sets: torchvision's folders, and UCI")] = ""
    classes: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=999)], ...],
        about("learn only these classes of the images, renumbered from 0; empty: all", max_length=1000),
    ] = ()
    most_test: Annotated[
        int, about("largest number of test images, and of out-of-distribution images; 0: all", ge=0, le=10**9)
    ] = 0
    validate: Annotated[
        bool, about("evaluate on held-out training images (test_fraction) instead of the test images")
    ] = False


class Method(Struct, frozen=True):
    """How the members of the ensemble interact; `stein methods` explains the names."""

    name: Annotated[Text, about("method", extra={"choices": methods.names})] = "h-svgd"
    stochastic: Annotated[bool, about("add the noise that makes the method a sampler")] = False
    particles: Annotated[int, about("members of the ensemble", ge=1, le=100_000)] = 20
    repulsion: Annotated[
        Literal["auto", "exact", "local"],
        about("repulsion of the fw-, h-, hp- and hs- methods; auto: local, but exact with noise and for hp- and hs-"),
    ] = "auto"
    repulsion_energy: Annotated[
        Literal["auto"] | Annotated[float, Meta(gt=0, le=1)],
        about(
            "fraction of the pairwise forces that the exact repulsion keeps; 1: all; auto: 0.9999, or 1 with noise or "
            "repulsion_directions"
        ),
    ] = "auto"
    repulsion_directions: Annotated[
        int, about("most directions that the exact repulsion keeps, to bound its cost; 0: no bound", ge=0, le=10**6)
    ] = 0
    repulsion_probe: Annotated[
        bool, about("add a random combination of what the exact repulsion drops: unbiased, but adds variance")
    ] = False
    kernel: Annotated[Literal["rbf", "imq"], about("kernel, if the method has one")] = "rbf"
    bandwidth: Annotated[Literal["median"] | Positive, about("bandwidth h of the kernel k(|x - y|²/h)")] = "median"
    freeze_bandwidth_after: Annotated[StepsOrNone, about("freeze the median bandwidth after this step; 0: never")] = 0
    noise: Annotated[
        Literal["cholesky", "elementwise-shared", "elementwise-independent"],
        about("root of the noise covariance; the elementwise ones are wrong, for reproduction only"),
    ] = "cholesky"
    noise_place: Annotated[
        Literal["langevin", "adam-inside"], about("where noise enters; adam-inside is for reproduction only")
    ] = "langevin"
    freeze_preconditioner_after: Annotated[
        StepsOrNone, about("freeze the preconditioner after this Langevin step; 0: never")
    ] = 0
    draws: Annotated[
        int,
        about("last draws of every chain of a sampler, which are then the ensemble; 0: the chains are", ge=0, le=10**6),
    ] = 0
    thin: Annotated[Steps, about("steps between two draws")] = 1
    burn_in: Annotated[StepsOrNone, about("steps before the first draw")] = 0
    tuning_steps: Annotated[
        StepsOrNone,
        about("steps at the end of the burn-in in which mile tunes its chains; before them it trains a deep ensemble"),
    ] = 0
    energy_variance: Annotated[
        Positive,
        about("variance of the energy error per weight that mile tunes its steps to; less: shorter steps, less bias"),
    ] = 0.1
    friction: Annotated[
        float, about("fraction of the momentum that sghmc loses in a step; 1: Langevin dynamics", gt=0, le=1)
    ] = 0.1
    exploration: Annotated[
        float,
        about("fraction at the beginning of every cycle of optimiser.schedule = cyclical without noise", ge=0, lt=1),
    ] = 0.0
    temperature: Annotated[Positive, about("T; the target is the posterior to the power 1/T")] = 1.0
    start: Annotated[Literal["prior", "model"], about("initial weights: prior draws, or the model's initialiser")] = (
        "prior"
    )
    functional_prior: Annotated[
        Literal["auto", "none", "ssge", "moment-matched", "gaussian-process", "infinite-width"],
        about(
            "prior over functions, used by the functional methods only; infinite-width: that of a relu mlp with wide "
            "layers, under its own prior, or with logits of about 10 for classes; auto: this for classes, else none"
        ),
    ] = "auto"
    gp_scale: Annotated[
        Positive, about("standard deviation of the Gaussian process, in units of the network's outputs")
    ] = 1.0
    gp_length: Annotated[
        Positive, about("length scale of the Gaussian process, in units of the network's inputs (standardised or not)")
    ] = 1.0
    prior_draws: Annotated[
        Literal["auto"] | Annotated[int, Meta(ge=2, le=10**6)],
        about("networks drawn from the prior per step, for the functional prior; auto: twice the members, or 100"),
    ] = "auto"
    prior_points: Annotated[
        int, about("batch points at which the functional prior is evaluated, redrawn per step; 0: all", ge=0, le=10**6)
    ] = 0
    compares: Annotated[
        Text,
        about(
            "what functional kernels compare: outputs, probabilities, hidden-1 (a hidden layer, by its number) or "
            "input-gradients; auto: what the method's name says"
        ),
    ] = "auto"
    principal_axes: Annotated[bool, about("weigh the input gradients of forde by the principal axes of the inputs")] = (
        False
    )
    measurement: Annotated[
        Literal["batch", "independent", "extra"],
        about(
            "points for functional kernels: the gradient's batch, one drawn separately (unbiased with noise), or only "
            "the extra points, as rde has it anyway"
        ),
    ] = "batch"
    measurement_subset: Annotated[
        int, about("number of points of that batch that functional kernels use; 0: all", ge=0, le=10**9)
    ] = 0
    extra_points: Annotated[
        int, about("additional unlabelled points for functional kernels, new in every step", ge=0, le=10**6)
    ] = 0
    extra_source: Annotated[
        Text,
        about(
            "their source: box (uniform between the smallest and largest inputs), noise (inputs of the batch "
            "plus noise of half their standard deviation), mixture (between two inputs of the batch), augmented "
            "(images of the batch, shifted and flipped), patches (images of the batch with shuffled patches), or a "
            "file of inputs: .csv, .parquet, .npy or .npz"
        ),
    ] = "box"

    @property
    def title(self) -> str:
        """The name, and whether it is the stochastic version."""
        return self.name + (" stochastic" if self.stochastic else "")


class Model(Struct, frozen=True):
    """The network of each member."""

    name: Annotated[
        Literal["mlp", "resnet32", "given"],
        about("fully connected, residual for images, or given in Python to an estimator of stein.sklearn"),
    ] = "mlp"
    hidden: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=100_000)], ...], about("widths of the mlp's hidden layers", max_length=100)
    ] = (50, 50)
    activation: Annotated[
        Literal["relu", "tanh", "silu", "gelu", "elu", "softplus"], about("activation of the mlp")
    ] = "relu"
    blocks: Annotated[
        int,
        about("residual blocks per stage of resnet32, with 6 blocks + 2 layers: 5 makes 32", ge=1, le=1000),
    ] = 5
    filters: Annotated[
        int, about("filters of the first stage of resnet32; the next two have 2 and 4 times as many", ge=1, le=10_000)
    ] = 16
    stride: Annotated[
        int,
        about("stride of the first convolution of resnet32; 2: every second pixel, a quarter of the work", ge=1, le=8),
    ] = 1
    bfloat16: Annotated[
        bool, about("compute the network in bfloat16; weights, kernels and noise stay in train.precision")
    ] = False


class Likelihood(Struct, frozen=True):
    """How targets scatter around the network's outputs."""

    name: Annotated[
        Literal["auto", "gaussian", "heteroscedastic", "categorical", "student-t", "poisson"],
        about(
            "auto: categorical for text and class numbers, gaussian for other numbers, an error if ambiguous; "
            "heteroscedastic: gaussian with a sigma for each input; student-t: outliers; poisson: counts"
        ),
    ] = "auto"
    sigma: Annotated[
        Literal["auto", "learned", "input-dependent"] | Positive,
        about(
            "standard deviation of the gaussian likelihood, or scale of student-t, in the target's units; auto: "
            "learned for tables, else 1; input-dependent: of student-t only"
        ),
    ] = "auto"
    modulation: Annotated[
        float,
        about(
            "with input-dependent noise: log sigma is one learned level plus this times an output of the network; 0: "
            "log sigma is that output",
            ge=0,
            le=10,
        ),
    ] = 0.0
    degrees: Annotated[float, about("degrees of freedom of student-t", gt=2)] = 4.0
    rate: Annotated[Positive, about("a typical count of poisson: the network learns the rate relative to it")] = 1.0
    center_logits: Annotated[
        bool, about("kernels compare logits minus their mean over classes, which does not affect predictions")
    ] = False


class Prior(Struct, frozen=True):
    """The prior over the weights."""

    name: Annotated[
        Literal["normal", "laplace", "fan-in"],
        about("independent over the weights; fan-in: normal, divided by the root of the number of inputs of a unit"),
    ] = "normal"
    scale: Annotated[
        Literal["auto"] | Positive,
        about(
            "standard deviation (normal, fan-in) or diversity (laplace); auto: fan-in 1.2; else for tables 0.2, with "
            "classes 0.5, else 1"
        ),
    ] = "auto"


class Train(Struct, frozen=True):
    """The training loop."""

    steps: Annotated[Steps, about("training steps")] = 10_000
    batch_size: Annotated[
        Literal["auto"] | Annotated[int, Meta(ge=0, le=10**9)],
        about("points per batch; 0: all; auto: at most 256 for tables, else all"),
    ] = "auto"
    crop: Annotated[
        int,
        about("train on random windows of the images with a border of so many zero pixels; 0: off", ge=0, le=1000),
    ] = 0
    flip: Annotated[bool, about("mirror every image of a batch left to right, with probability 1/2")] = False
    seed: Annotated[Seed, about("seed of initial weights, batches and noise")] = 0
    log_every: Annotated[Steps, about("steps per line of metrics.jsonl, compiled as one loop")] = 100
    precision: Annotated[Literal["float32", "float64"], about("floating-point precision")] = "float32"
    on_nan: Annotated[Literal["freeze", "resample", "stop"], about("what to do if a member is no longer finite")] = (
        "freeze"
    )
    min_alive: Annotated[float, about("the run fails if a smaller fraction of members is finite", gt=0, le=1)] = 0.5
    early_stop: Annotated[
        int, about("evaluations without a better validation nll before the run stops; 0: never stop", ge=0, le=10**9)
    ] = 0


class Optimiser(Struct, frozen=True):
    """How a force becomes a step."""

    name: Annotated[
        Literal["adam", "adamw", "sgd", "momentum", "rmsprop", "adagrad", "lion", "lamb", "nadam", "radam"],
        about("Optax optimiser of deterministic methods; with noise the steps are Langevin's"),
    ] = "adam"
    learning_rate: Annotated[
        Positive, about("step size; a Langevin step, or the square of one of sghmc, is this over the number of points")
    ] = 1e-3
    schedule: Annotated[
        Literal["auto", "constant", "cosine", "exponential", "polynomial", "cyclical"],
        about("how the learning rate decays; auto: cosine for tables, else constant; cyclical: again and again"),
    ] = "auto"
    cycles: Annotated[int, about("cycles of schedule = cyclical; each falls along a cosine", ge=1, le=10**6)] = 4
    final_fraction: Annotated[
        float, about("learning rate at the last step over learning_rate, if it decays", gt=0, lt=1)
    ] = 0.01
    warmup_steps: Annotated[StepsOrNone, about("steps of linear warm-up to learning_rate")] = 0
    clip: Annotated[float, about("clip each member's gradient to this norm; 0: off", ge=0)] = 0.0
    weight_decay: Annotated[
        float, about("decoupled decay of adamw, lamb and lion, on top of the prior", ge=0, lt=1)
    ] = 0.0


class Annealing(Struct, frozen=True):
    """A driving force that grows during training, so that members spread out first."""

    name: Annotated[Literal["none", "linear", "hyperbolic", "cyclical"], about("shape of the growth")] = "none"
    steps: Annotated[StepsOrNone, about("steps until full force; 0: a fifth of train.steps")] = 0
    power: Annotated[Positive, about("steepness of hyperbolic and cyclical")] = 10.0
    cycles: Annotated[int, about("repetitions of cyclical", ge=1, le=10**6)] = 5


class Evaluation(Struct, frozen=True):
    """Metrics on the held-out points."""

    every: Annotated[
        StepsOrNone, about("steps between evaluations; 0: only at the end; a multiple of train.log_every")
    ] = 1000
    summary: Annotated[
        bool,
        about("at the end calibrate on the validation part, compare with other models, and write summary.md"),
    ] = False
    coverage: Annotated[
        float, about("probability of the intervals or sets in summary.md and of `stein predict`", gt=0, lt=1)
    ] = 0.9


class Checkpoints(Struct, frozen=True):
    """Checkpoints, from which a run is resumed."""

    every: Annotated[Steps, about("steps between checkpoints; a multiple of train.log_every")] = 1000
    keep: Annotated[int, about("latest checkpoints to keep", ge=2, le=10**6)] = 3
    best: Annotated[bool, about("also keep the checkpoint with the best validation nll")] = False


class Tracking(Struct, frozen=True):
    """What is logged besides the losses, and where else it goes."""

    diagnostics: Annotated[
        bool,
        about("log how the members interact: kernels, forces, rank; takes as long to compile as a training step"),
    ] = True
    far_spread: Annotated[
        bool,
        about("with every evaluation of a regression, log whether members still differ far from the data, and warn"),
    ] = False
    tensorboard: Annotated[bool, about("write TensorBoard events to tb/ in the run")] = True
    wandb: Annotated[Text, about("Weights & Biases project; empty: off")] = ""
    mlflow: Annotated[Text, about("MLflow tracking URI; empty: off")] = ""


class Config(Struct, frozen=True):
    """A run. Only ``data`` must be given."""

    data: Data
    method: Method = Method()
    model: Model = Model()
    likelihood: Likelihood = Likelihood()
    prior: Prior = Prior()
    train: Train = Train()
    optimiser: Optimiser = Optimiser()
    annealing: Annealing = Annealing()
    evaluation: Evaluation = Evaluation()
    checkpoints: Checkpoints = Checkpoints()
    tracking: Tracking = Tracking()

    @property
    def annealing_steps(self) -> int:
        """Length of the annealing, with its default filled in."""
        return self.annealing.steps or self.train.steps // 5

    @property
    def is_table(self) -> bool:
        """Whether "auto" takes the defaults for tables."""
        return bool(self.data.file or self.data.inputs) or self.data.name in (*UCI, "arrays")

    @property
    def rate_falls(self) -> bool:
        """Whether the learning rate depends on the number of steps."""
        chosen = self.optimiser.schedule
        return self.is_table if chosen == "auto" else chosen != "constant"

    @property
    def validation_fraction(self) -> float:
        """Fraction of the training points that is held out for validation, with its default filled in."""
        chosen = self.data.validation_fraction
        wanted = self.train.early_stop or self.checkpoints.best or self.evaluation.summary
        return 0.1 * bool(wanted) if chosen == "auto" else chosen


FORMER: dict[str, Any] = {
    "data.validation_fraction": 0.0,
    "data.standardise": False,
    "data.standardise_targets": False,
    "data.reading": "as-before",
    "method.functional_prior": "none",
    "likelihood.sigma": 1.0,
    "prior.scale": 1.0,
    "train.batch_size": 0,
    "optimiser.schedule": "constant",
}
"""Old meanings of "auto" and of keys that were added later; still valid for data that are not tables.

A run's config.toml has every key of its version: a missing key takes this value."""
