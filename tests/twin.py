r"""A second implementation of one whole step of every method, in plain NumPy, from the equations of the paper.

Slow and explicit on purpose: loops over particles i and j, Jacobians as matrices, the median over all n^2 distances,
the n^2 sum of the exact repulsion. Nothing here imports jax or stein, so that an error would have to be made twice.

Shapes: n particles, d weights, B points in the gradient batch, C outputs, M measurement points, k features a point.
Weights are vectors of length d; functions are vectors of length M * C (outputs) or M * k (features), point by point.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# -- the network ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Network:
    """f(x; w) = V [tanh(U [x, 1]), 1]: two layers with their biases as last columns; the vector w is [U, V]."""

    inputs: int
    hidden: int
    outputs: int

    def shapes(self):
        return (self.hidden, self.inputs + 1), (self.outputs, self.hidden + 1)

    def sizes(self):
        return [rows * columns for rows, columns in self.shapes()]

    def layers(self, w):
        U, V = np.split(w, self.sizes()[:1])
        return U.reshape(self.shapes()[0]), V.reshape(self.shapes()[1])

    def f(self, w, X):
        """Outputs (points, C)."""
        U, V = self.layers(w)
        return np.array([V @ np.append(np.tanh(U @ np.append(x, 1)), 1) for x in X]).reshape(-1, self.outputs)

    def jacobian(self, w, X):
        """df/dw by the chain rule, written out: (points * C, d)."""
        U, V = self.layers(w)
        rows = []
        for x in X:
            z = np.tanh(U @ np.append(x, 1))
            for o in range(self.outputs):
                d_U = np.outer(V[o, :-1] * (1 - z**2), np.append(x, 1))
                d_V = np.zeros_like(V)
                d_V[o] = np.append(z, 1)
                rows.append(np.concatenate([d_U.ravel(), d_V.ravel()]))
        return np.array(rows).reshape(-1, sum(self.sizes()))

    def input_gradient(self, w, x, e):
        """grad_x of sum_o e_o f_o(x; w), (inputs,), and its Jacobian in the weights, (inputs, d)."""
        U, V = self.layers(w)
        z, v = np.tanh(U @ np.append(x, 1)), e @ V[:, :-1]
        slope = 1 - z**2
        gradient = (v * slope) @ U[:, :-1]
        jacobian = np.zeros((self.inputs, sum(self.sizes())))
        for a in range(self.inputs):
            d_U = np.outer(v * U[:, a] * -2 * z * slope, np.append(x, 1))
            d_U[:, a] += v * slope
            d_V = np.outer(e, np.append(slope * U[:, a], 0))
            jacobian[a] = np.concatenate([d_U.ravel(), d_V.ravel()])
        return gradient, jacobian


# -- likelihoods and what the functional kernel sees ---------------------------------------------------------


def blocks(matrices):
    """Block-diagonal matrix: points do not mix."""
    rows, columns = sum(m.shape[0] for m in matrices), sum(m.shape[1] for m in matrices)
    out, r, c = np.zeros((rows, columns)), 0, 0
    for m in matrices:
        out[r : r + m.shape[0], c : c + m.shape[1]] = m
        r, c = r + m.shape[0], c + m.shape[1]
    return out


def softmax(f):
    e = np.exp(f - f.max())
    return e / e.sum()


@dataclass(frozen=True)
class Gaussian:
    """y ~ N(f, sigma^2)."""

    sigma: float = 1.0

    def score(self, f, y):
        return (y - f) / self.sigma**2

    def label(self, f, y):
        return np.ones(len(f))

    def features(self, f):
        return f

    def feature_jacobian(self, f):
        return np.eye(len(f))


@dataclass(frozen=True)
class Heteroscedastic:
    """y_k ~ N(f_k, exp(g_k)^2), outputs (f, g); the functional kernel sees the means f."""

    def score(self, f, y):
        means, variances = f[: len(y)], np.exp(2 * f[len(y) :])
        return np.append((y - means) / variances, (y - means) ** 2 / variances - 1)

    def label(self, f, y):
        return np.repeat([1.0, 0.0], len(f) // 2)

    def features(self, f):
        return f[: len(f) // 2]

    def feature_jacobian(self, f):
        return np.eye(len(f))[: len(f) // 2]


@dataclass(frozen=True)
class Categorical:
    """p(y) = softmax(f)_y; the functional kernel sees "logits", "centred" logits or "probabilities"."""

    sees: str = "logits"

    def score(self, f, y):
        return np.eye(len(f))[y] - softmax(f)

    def label(self, f, y):
        return np.eye(len(f))[y]

    def features(self, f):
        return {"logits": f, "centred": f - f.mean(), "probabilities": softmax(f)}[self.sees]

    def feature_jacobian(self, f):
        C, p = len(f), softmax(f)
        return {
            "logits": np.eye(C),
            "centred": np.eye(C) - np.ones((C, C)) / C,
            "probabilities": np.diag(p) - np.outer(p, p),
        }[self.sees]


# -- weight priors: std (or b) is a vector, one entry for each weight ----------------------------------------


def normal_score(w, std):
    return -w / std**2


def laplace_score(w, b):
    return -np.sign(w) / b


# -- kernels and bandwidths ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rbf:
    """k(a, b) = exp(-|a - b|^2 / h)."""

    def value(self, a, b, h):
        return math.exp(-np.sum((a - b) ** 2) / h)

    def gradient(self, a, b, h):
        """grad_b k(a, b)."""
        return 2 / h * self.value(a, b, h) * (a - b)


@dataclass(frozen=True)
class Imq:
    """k(a, b) = (1 + |a - b|^2 / h)^(-p)."""

    p: float = 0.5

    def value(self, a, b, h):
        return (1 + np.sum((a - b) ** 2) / h) ** -self.p

    def gradient(self, a, b, h):
        return self.p * (1 + np.sum((a - b) ** 2) / h) ** (-self.p - 1) * 2 / h * (a - b)


def median_bandwidth(points, floor=1e-12):
    """h = med / log(n + 1), med the median of all n^2 squared distances, the zeros on the diagonal included."""
    n = len(points)
    squared = [np.sum((points[i] - points[j]) ** 2) for i in range(n) for j in range(n)]
    return max(np.median(squared) / math.log(n + 1), floor)


@dataclass
class Kernel:
    """A shape with a bandwidth: a fixed h, or the median, which after ``freeze`` steps keeps its last value."""

    shape: Any
    h: float | None = None
    freeze: int | None = None
    _seen: int = 0
    _last: float = math.nan

    def bandwidth(self, points):
        if self.h is not None:
            return self.h
        if self.freeze is None or self._seen < self.freeze:
            self._last = median_bandwidth(points)
        self._seen += 1
        return self._last

    def pairs(self, points):
        """K_ij = k(x_i, x_j) and D_ij = grad_{x_j} k(x_i, x_j), as (n, n) and (n, n, dim)."""
        n, h = len(points), self.bandwidth(points)
        K = np.array([[self.shape.value(points[i], points[j], h) for j in range(n)] for i in range(n)])
        D = np.array([[self.shape.gradient(points[i], points[j], h) for j in range(n)] for i in range(n)])
        return K, D

    def functional_pairs(self, look):
        """The same for functions, compared by the *mean* over the M points: k sees f / sqrt(M)."""
        root = 1 / math.sqrt(look.num_points)
        K, D = self.pairs(root * look.features)
        return K, root * D


# -- all that a method may look at ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """N data points, a likelihood, a prior score, a temperature, an annealing schedule."""

    network: Network
    likelihood: Any
    prior_score: Callable
    num_data: int
    temperature: float = 1.0
    anneal: Callable[[int], float] = lambda t: 1.0


@dataclass
class Look:
    W: np.ndarray  # (n, d)
    G: np.ndarray  # (n, d): (N/B) J^T sum_b grad log p(y_b | f_i) + grad log p(w_i)
    g_mean: np.ndarray  # (n, d): mean over the batch of grad_w log p(y_b | w_i)
    features: np.ndarray  # (n, M k)
    num_points: int  # M
    J: np.ndarray  # (n, M k, d): Jacobian of the features
    S: np.ndarray  # (n, M C): (N/B) grad_f log p(y | f_i), zero where there is no label
    J_out: np.ndarray  # (n, M C, d): Jacobian of the outputs
    J_feature: np.ndarray  # (n, M k, M C): Jacobian of the features in the outputs
    P: np.ndarray  # (n, M k): functional prior score
    drive: float  # gamma_t / T
    directions: Callable  # () -> per member and point of the batch: unit grad_x f_y (inputs,), its Jacobian (inputs, d)


def look(problem, W, batch, t, functional_prior=None, measured=None, extra=None):
    """``measured``: the measurement inputs if they are not the batch; ``extra``: inputs without labels."""
    net, lik, (X, Y) = problem.network, problem.likelihood, batch
    B, N = len(X), problem.num_data
    points = X if measured is None else measured
    points = points if extra is None else np.concatenate([points, extra])
    rows = {name: [] for name in ("G", "g_mean", "features", "J", "S", "J_out", "J_feature")}
    for w in W:
        f = net.f(w, X)
        s = np.concatenate([lik.score(f[b], Y[b]) for b in range(B)])
        likelihood_gradient = net.jacobian(w, X).T @ s  # a sum over the batch
        rows["g_mean"].append(likelihood_gradient / B)
        rows["G"].append(N / B * likelihood_gradient + problem.prior_score(w))
        F = net.f(w, points)
        J_out = net.jacobian(w, points)
        J_feature = blocks([lik.feature_jacobian(F[m]) for m in range(len(points))])
        rows["features"].append(np.concatenate([lik.features(F[m]) for m in range(len(points))]))
        rows["J_out"].append(J_out)
        rows["J_feature"].append(J_feature)
        rows["J"].append(J_feature @ J_out)
        labelled = N / B * s if measured is None else np.zeros(0)
        rows["S"].append(np.concatenate([labelled, np.zeros(len(points) * net.outputs - len(labelled))]))
    arrays = {name: np.array(values) for name, values in rows.items()}
    P = np.zeros_like(arrays["features"])
    if functional_prior is not None:
        P = functional_prior(arrays["features"], points)
    drive = problem.anneal(t) / problem.temperature
    directions = lambda: [[label_direction(problem, w, X[b], Y[b]) for b in range(B)] for w in W]  # noqa: E731
    return Look(W=W, num_points=len(points), P=P, drive=drive, directions=directions, **arrays)


def label_direction(problem, w, x, y):
    """a = g / sqrt(|g|^2 + 1e-12), g = grad_x f_y, and da/dw = (I - a a^T) dg/dw / sqrt(...)."""
    f = problem.network.f(w, [x])[0]
    g, dg = problem.network.input_gradient(w, x, problem.likelihood.label(f, y))
    length = math.sqrt(g @ g + 1e-12)
    a = g / length
    return a, (np.eye(len(a)) - np.outer(a, a)) @ dg / length


# -- functional priors: (features (n, M k), points) -> score (n, M k) ----------------------------------------


def gaussian_process_score(covariance, mean, jitter, outputs):
    """-(K_GP + jitter I)^{-1} (f - mean), output by output."""

    def score(features, points):
        inverse = np.linalg.inv(covariance(points, points) + jitter * np.eye(len(points)))
        out = np.zeros_like(features)
        for i, f in enumerate(features):
            by_point = f.reshape(len(points), outputs)
            out[i] = np.stack([-inverse @ (by_point[:, o] - mean) for o in range(outputs)], axis=1).ravel()
        return out

    return score


def moment_matched_score(draws, jitter):
    """-(Sigma + jitter mean(diag Sigma) I)^{-1} (f - mu) with the moments of the draws."""

    def score(features, points):
        mu, Sigma = draws.mean(axis=0), np.cov(draws, rowvar=False, ddof=1)
        regular = Sigma + jitter * np.diag(Sigma).mean() * np.eye(len(mu))
        return np.array([-np.linalg.solve(regular, f - mu) for f in features])

    return score


def infinite_width_covariance(x, sizes, weight_std, bias_std):
    """The covariance of a ReLU network at infinite width, pair by pair, its integrals by quadrature."""

    def both(kuu, kuv, kvv):
        """E[relu(u) relu(v)], with u = a cos t, v = b cos(t - angle), r^2 integrated out."""
        a, b = math.sqrt(kuu), math.sqrt(kvv)
        angle = math.acos(min(1.0, max(-1.0, kuv / (a * b))))
        # Both are positive for t in (angle - pi/2, pi/2); there the integrand is cos t cos(t - angle).
        nodes, weights = np.polynomial.legendre.leggauss(30)
        half = (math.pi - angle) / 2
        t = angle / 2 + half * nodes
        return a * b * 2 * half * (weights @ (np.cos(t) * np.cos(t - angle))) / (2 * math.pi)

    K = np.array([[bias_std[0] ** 2 + weight_std[0] ** 2 * float(p @ q) for q in x] for p in x])
    for layer, width in enumerate(sizes[1:-1], 1):
        inner = np.array([[both(K[i, i], K[i, j], K[j, j]) for j in range(len(x))] for i in range(len(x))])
        K = bias_std[layer] ** 2 + weight_std[layer] ** 2 * width * inner
    return K


def ssge_score(draws, energy=0.99, eta=0.0):
    """Spectral Stein gradient estimator: k(x, S) U_J Lambda_J^{-2} U_J^T D, D_k = sum_l grad_{s_k} k(s_k, s_l)."""

    def score(features, points):
        M = len(draws)
        together = [*draws, *features]
        width = np.median([np.linalg.norm(together[i] - together[j]) for i in range(len(together)) for j in range(i)])
        k = lambda a, b: math.exp(-np.sum((a - b) ** 2) / (2 * width**2))  # noqa: E731
        K = np.array([[k(a, b) for b in draws] for a in draws])
        D = np.array([sum(-(a - b) / width**2 * k(a, b) for b in draws) for a in draws])
        values, U = np.linalg.eigh(K + eta * np.eye(M))
        order = np.argsort(values)[::-1]
        values, U = values[order], U[:, order]
        J = 1
        while values[:J].sum() < energy * values.sum():
            J += 1
        coefficients = sum(np.outer(U[:, q], U[:, q] @ D) / values[q] ** 2 for q in range(J))
        return np.array([np.array([k(x, s) for s in draws]) @ coefficients for x in features])

    return score


# -- repulsion between functions, in weights -----------------------------------------------------------------


def local_repulsion(D, look, energy=1.0):
    """R_i = J_i^T sum_j grad_{f_j} k(f_i, f_j)."""
    return np.array([look.J[i].T @ D[i].sum(axis=0) for i in range(len(D))])


def exact_repulsion(D, look, energy=1.0):
    """R_i = sum_j J_j^T grad_{f_j} k(f_i, f_j), the forces projected on the directions that hold ``energy`` of them.

    Directions are the singular ones of the features around their middle, every row of length one.
    """
    n, project = len(D), np.eye(look.features.shape[1])
    if energy < 1:
        norms = np.linalg.norm(look.features, axis=1)
        near = norms <= 3 * np.sort(norms)[(n - 1) // 2]
        rows = look.features - look.features[near].mean(axis=0)
        _, _, Vt = np.linalg.svd(rows / np.linalg.norm(rows, axis=1, keepdims=True), full_matrices=False)
        shares = np.array([sum((D[i, j] @ v) ** 2 for i in range(n) for j in range(n)) for v in Vt])
        order = np.argsort(-shares)
        r = 1
        while shares[order[:r]].sum() < energy * shares.sum():
            r += 1
        project = Vt[order[:r]].T @ Vt[order[:r]]
    return np.array([sum(look.J[j].T @ project @ D[i, j] for j in range(n)) for i in range(n)])


# -- the methods: (look, kernels, jitter, repulsion) -> drift (n, d), kernel matrix of the noise -------------


def independent(look, kernels, jitter, repulse):
    return look.drive * look.G, None


def _svgd(matrix, jitter, look, repulsion):
    """phi_i = (1/n) [ sum_j (K + jitter I)_ij (gamma/T) g_j + R_i ]."""
    n = len(look.W)
    A = matrix + jitter * np.eye(n)
    phi = [(sum(A[i, j] * look.drive * look.G[j] for j in range(n)) + repulsion[i]) / n for i in range(n)]
    return np.array(phi), matrix


def w_svgd(look, kernels, jitter, repulse):
    K, D = kernels[0].pairs(look.W)
    return _svgd(K, jitter, look, D.sum(axis=1))


def fw_svgd(look, kernels, jitter, repulse):
    K, D = kernels[0].functional_pairs(look)
    return _svgd(K, jitter, look, repulse(D, look))


def h_svgd(look, kernels, jitter, repulse):
    K, _ = kernels[0].pairs(look.W)
    _, D = kernels[1].functional_pairs(look)
    return _svgd(K, jitter, look, repulse(D, look))


def hp_svgd(look, kernels, jitter, repulse):
    K_w, D_w = kernels[0].pairs(look.W)
    K_f, D_f = kernels[1].functional_pairs(look)
    in_weights = (K_f[:, :, None] * D_w).sum(axis=1)
    return _svgd(K_w * K_f, jitter, look, in_weights + repulse(K_w[:, :, None] * D_f, look))


def hs_svgd(look, kernels, jitter, repulse):
    K_w, D_w = kernels[0].pairs(look.W)
    K_f, D_f = kernels[1].functional_pairs(look)
    return _svgd(0.5 * K_w + 0.5 * K_f, jitter, look, 0.5 * D_w.sum(axis=1) + repulse(0.5 * D_f, look))


def _functional_score(look, j):
    """(gamma/T) (s_j + p_j) as a cotangent on the outputs."""
    return look.drive * (look.S[j] + look.J_feature[j].T @ look.P[j])


def f_svgd(look, kernels, jitter, repulse):
    K, D = kernels[0].functional_pairs(look)
    n, phi = len(K), []
    for i in range(n):
        driving = sum(K[i, j] * _functional_score(look, j) for j in range(n))
        phi.append(look.J_out[i].T @ (driving + look.J_feature[i].T @ D[i].sum(axis=0)) / n)
    return np.array(phi), None


def kde(K, D):
    """R_i / sum_j k_ij."""
    return np.array([D[i].sum(axis=0) / K[i].sum() for i in range(len(K))])


def sge(K, D, eta=0.01):
    """(K + eta I)^{-1} R."""
    return np.linalg.inv(K + eta * np.eye(len(K))) @ D.sum(axis=1)


def ssge(K, D, eta=0.01):
    """K (K + eta I)^{-2} R."""
    inverse = np.linalg.inv(K + eta * np.eye(len(K)))
    return K @ inverse @ inverse @ D.sum(axis=1)


def blob(K, D):
    """sum_j grad_{x_j} k(x_i, x_j) (1/r_i + 1/r_j), r = K 1."""
    n, r = len(K), K.sum(axis=1)
    return np.array([sum(D[i, j] * (1 / r[i] + 1 / r[j]) for j in range(n)) for i in range(n)])


def in_weights(estimator):
    def wgd(look, kernels, jitter, repulse):
        K, D = kernels[0].pairs(look.W)
        return look.drive * look.G + estimator(K, D), None

    return wgd


def in_functions(estimator):
    def fwgd(look, kernels, jitter, repulse):
        K, D = kernels[0].functional_pairs(look)
        apart = estimator(K, D)
        phi = [look.J_out[i].T @ (_functional_score(look, i) + look.J_feature[i].T @ apart[i]) for i in range(len(K))]
        return np.array(phi), None

    return fwgd


def rde(look, kernels, jitter, repulse):
    K, D = kernels[0].functional_pairs(look)
    apart = kde(K, D)
    return np.array([look.drive * look.G[i] + look.J[i].T @ apart[i] for i in range(len(K))]), None


def forde(look, kernels, jitter, repulse):
    """k_ij = mean_b kappa(a_ib, a_jb), with a bandwidth per point."""
    seen = look.directions()
    n, B = len(seen), len(seen[0])
    pairs = [kernels[0].pairs(np.array([seen[i][b][0] for i in range(n)])) for b in range(B)]
    sums = sum(K for K, _ in pairs).sum(axis=1)
    phi = []
    for i in range(n):
        force = sum(seen[i][b][1].T @ pairs[b][1][i].sum(axis=0) for b in range(B)) / sums[i]
        phi.append(look.drive * look.G[i] + force)
    return np.array(phi), None


def student_fwgd(look, kernels, jitter, repulse):
    """J_i^T [s_i + p_i + c/(1 + d_i^2/nu) (Sigma + eta I)^{-1} (f_i - mu)], eta = 0.1, nu the mean of d^2."""
    mu, Sigma = look.features.mean(axis=0), np.cov(look.features, rowvar=False, ddof=1)
    push = [np.linalg.solve(Sigma + 0.1 * np.eye(len(mu)), f - mu) for f in look.features]
    d2 = np.array([(f - mu) @ r for f, r in zip(look.features, push, strict=True)])
    weight = 1 / (1 + d2 / d2.mean())
    c = d2.sum() / (weight @ d2)
    apart = [c * w * r for w, r in zip(weight, push, strict=True)]
    phi = [look.J_out[i].T @ (_functional_score(look, i) + look.J_feature[i].T @ apart[i]) for i in range(len(apart))]
    return np.array(phi), None


METHODS = {
    "de": independent,
    "sgld": independent,
    "psgld": independent,
    "sghmc": independent,
    "mile": independent,  # its start; its chains are below
    "w-svgd": w_svgd,
    "f-svgd": f_svgd,
    "fw-svgd-l": fw_svgd,
    "fw-svgd-s": fw_svgd,
    "h-svgd-l": h_svgd,
    "h-svgd-s": h_svgd,
    "hp-svgd": hp_svgd,
    "hs-svgd": hs_svgd,
    "kde-wgd": in_weights(kde),
    "sge-wgd": in_weights(sge),
    "ssge-wgd": in_weights(ssge),
    "blob": in_weights(blob),
    "kde-fwgd": in_functions(kde),
    "sge-fwgd": in_functions(sge),
    "ssge-fwgd": in_functions(ssge),
    "f-blob": in_functions(blob),
    "rde": rde,
    "forde": forde,
    "student-fwgd": student_fwgd,
}


# -- noise: standard normals Xi (n, d) -> noise of covariance 2 D --------------------------------------------


def langevin_noise(K, Xi, jitter):
    """sqrt(2) Xi: every particle for itself."""
    return math.sqrt(2) * Xi


def cholesky_noise(K, Xi, jitter):
    """sqrt(2/n) L Xi, L L^T = K + jitter I."""
    return math.sqrt(2 / len(K)) * np.linalg.cholesky(K + jitter * np.eye(len(K))) @ Xi


def elementwise_shared_noise(K, Xi, jitter):
    """sum_j sqrt(2 k_ij / n) xi_j."""
    n = len(K)
    return np.array([sum(math.sqrt(2 * K[i, j] / n) * Xi[j] for j in range(n)) for i in range(n)])


def elementwise_independent_noise(K, Xi, jitter):
    """A normal of variance sum_j 2 k_ij / n."""
    n = len(K)
    return np.array([math.sqrt(sum(2 * K[i, j] / n for j in range(n))) * Xi[i] for i in range(n)])


# -- schedules -----------------------------------------------------------------------------------------------


def linear(A):
    return lambda t: t / (A - 1) if t < A else 1.0


def hyperbolic(A, p=10.0):
    return lambda t: math.tanh((1.3 * t / (A - 1)) ** p) if t < A else 1.0


def cyclical(A, c=5, p=10.0):
    L = A // c
    return lambda t: ((t % L) / L) ** p if t < A else 1.0


def cosine_cycles(initial, steps, cycles):
    L = math.ceil(steps / cycles)
    return lambda t: initial / 2 * (math.cos(math.pi * (t % L) / L) + 1)


def polynomial(initial, offset=1.0, power=0.55):
    return lambda t: initial * (1 + t / offset) ** -power


# -- steps ---------------------------------------------------------------------------------------------------


@dataclass
class Adam:
    """Kingma & Ba (2015) with -phi as the gradient; noise, if any, inside it: -(phi + zeta / sqrt(epsilon))."""

    lr: float
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    m: Any = 0.0
    v: Any = 0.0
    count: int = 0

    def __call__(self, W, phi, zeta, g_mean, t):
        g = -phi if zeta is None else -(phi + zeta / math.sqrt(self.lr))
        self.count += 1
        self.m = self.b1 * self.m + (1 - self.b1) * g
        self.v = self.b2 * self.v + (1 - self.b2) * g**2
        m_hat = self.m / (1 - self.b1**self.count)
        v_hat = self.v / (1 - self.b2**self.count)
        return W - self.lr * m_hat / (np.sqrt(v_hat) + self.eps)


@dataclass
class Langevin:
    """W + epsilon P phi + sqrt(epsilon P) zeta; P = 1/(lambda + sqrt V) from the mean likelihood gradient."""

    epsilon: Callable[[int], float]
    preconditioner: str | None = None  # "shared", "own" or None
    decay: float = 0.99
    lam: float = 1e-5
    freeze_after: int | None = None
    V: Any = 0.0

    def __call__(self, W, phi, zeta, g_mean, t):
        P = np.ones_like(W)
        if self.preconditioner is not None:
            squares = g_mean**2
            if self.preconditioner == "shared":
                squares = np.broadcast_to(squares.mean(axis=0), W.shape)
            if self.freeze_after is None or t < self.freeze_after:
                self.V = self.decay * self.V + (1 - self.decay) * squares
            P = 1 / (self.lam + np.sqrt(self.V))
        eps = self.epsilon(t)
        moved = W + eps * P * phi
        return moved if zeta is None else moved + np.sqrt(eps * P) * zeta


@dataclass
class Sghmc:
    """Chen et al. (2014): p <- (1 - a) p + epsilon phi + sqrt(a) zeta, zeta = sqrt(2) xi; W <- W + epsilon p."""

    epsilon: Callable[[int], float]
    friction: float = 0.1
    gradient_noise: float = 0.0
    p: Any = 0.0

    def __call__(self, W, phi, zeta, g_mean, t):
        eps = self.epsilon(t)
        self.p = (1 - self.friction) * self.p + eps * phi
        self.p = self.p + math.sqrt(self.friction - eps**2 * self.gradient_noise / 2) * zeta
        return W + eps * self.p


def microcanonical_step(w, u, gradient, log_density, epsilon):
    """One step without refreshment, and its change of energy: McLachlan's b, 1/2, 1 - 2b, 1/2, b."""
    d, b, kinetic = len(w), 0.1931833275037836, 0.0
    before = log_density(w)

    def kick(w, u, c):
        g = gradient(w)
        norm = np.linalg.norm(g)
        e, delta = g / norm, epsilon * c * norm / (d - 1)
        zeta = math.exp(-delta)
        turned = e * (1 - zeta) * (1 + zeta + (e @ u) * (1 - zeta)) + 2 * zeta * u
        gained = (d - 1) * (delta - math.log(2) + math.log((1 + e @ u) * (1 - zeta**2) + 2 * zeta**2))
        return turned / np.linalg.norm(turned), gained

    for c, drift in ((b, 0.5), (1 - 2 * b, 0.5), (b, 0.0)):
        u, gained = kick(w, u, c)
        kinetic += gained
        w = w + drift * epsilon * u
    return w, u, kinetic - log_density(w) + before


def microcanonical_tuning(positions, energies, finite, epsilon, aim):
    """The step size after every step of the tuning, and the two lengths, all from the whole history."""
    steps, d = positions.shape
    second, third = int(0.8 * steps), int(0.9 * steps)
    longest, xs, ts, sizes = math.inf, 0.0, 0.0, []
    for t in range(third):
        v = aim * (5 - 4 * t / third)
        xi = energies[t] ** 2 / (d * v) + 1e-8
        omega = math.exp(-0.5 * (math.log(xi) / 9) ** 2)
        xs = 99 / 101 * xs + omega * xi / epsilon**6
        ts = 99 / 101 * ts + omega
        if not finite[t]:
            longest = 0.8 * epsilon
        epsilon = min((xs / ts) ** (-1 / 6), longest)
        sizes.append(epsilon)
    weights = np.array(sizes)[second:third] * finite[second:third]
    mean = np.average(positions[second:third], axis=0, weights=weights)
    first = math.sqrt(np.average((positions[second:third] - mean) ** 2, axis=0, weights=weights).sum())
    last = positions[third:]
    size = len(last) // 10
    means = np.array([last[i * size : (i + 1) * size].mean(axis=0) for i in range(10)])
    times = size * means.var(axis=0, ddof=1) / last.var(axis=0)
    return np.array(sizes + [epsilon] * (steps - third)), first, 0.4 * epsilon * times.mean()


# -- the whole thing -----------------------------------------------------------------------------------------


@dataclass
class Algorithm:
    """A method with its state: particles, kernels (which remember a frozen bandwidth), moments."""

    method: str
    problem: Problem
    W: np.ndarray
    step: Any
    kernels: list[Kernel] = field(default_factory=list)
    noise: Callable | None = None
    jitter: float = 0.0
    repulsion: Callable = local_repulsion
    energy: float = 1.0
    t: int = 0

    def advance(self, batch, Xi=None, **measurement):
        here = look(self.problem, self.W, batch, self.t, **measurement)
        repulse = lambda D, here: self.repulsion(D, here, self.energy)  # noqa: E731
        phi, K = METHODS[self.method](here, self.kernels, self.jitter, repulse)
        zeta = None if self.noise is None else self.noise(K, Xi, self.jitter)
        self.W = self.step(self.W, phi, zeta, here.g_mean, self.t)
        self.t += 1
        return self.W
