"use strict";
// Small problems, computed in the page. The rules are those of stein.rules; a test in a browser compares the two.
const playground = (() => {
  // -- algebra: n particles are an array of n rows -----------------------------------------------------------------
  const rows = (n, d) => Array.from({ length: n }, () => new Float64Array(d));
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const add = (x, y, factor = 1) => x.map((row, i) => row.map((value, k) => value + factor * y[i][k]));
  const scale = (factor, x) => x.map((row) => row.map((value) => factor * value));
  const mix = (matrix, x) => matrix.map((line) => {
    const out = new Float64Array(x[0].length);
    line.forEach((weight, j) => { for (let k = 0; k < out.length; k++) out[k] += weight * x[j][k]; });
    return out;
  });
  const squaredDistances = (x) => x.map((a) => Float64Array.from(x, (b) => {
    let total = 0;
    for (let k = 0; k < a.length; k++) total += (a[k] - b[k]) ** 2;
    return total;
  }));
  const median = (values) => {
    const sorted = Float64Array.from(values).sort(), half = sorted.length >> 1;
    return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  };
  const cholesky = (matrix) => {
    const factor = rows(matrix.length, matrix.length);
    for (let i = 0; i < matrix.length; i++) for (let j = 0; j <= i; j++) {
      let rest = matrix[i][j];
      for (let k = 0; k < j; k++) rest -= factor[i][k] * factor[j][k];
      factor[i][j] = i === j ? Math.sqrt(rest) : rest / factor[j][j];
    }
    return factor;
  };

  // -- kernels: k = kappa(u), u = |x_i - x_j|^2 / h; `left` are the coefficients of x_i - x_j in its gradient --------
  const PROFILES = {
    rbf: (u) => { const k = Math.exp(-u); return [k, k]; },
    imq: (u) => [(1 + u) ** -0.5, 0.5 * (1 + u) ** -1.5],
  };
  const gram = (x, kernel, width) => {
    const squared = squaredDistances(x), n = x.length;
    const h = Math.max(width * median(squared.flatMap((row) => [...row])) / Math.log(n + 1), 1e-12);
    const both = squared.map((row) => Array.from(row, (distance) => PROFILES[kernel](distance / h)));
    const matrix = both.map((row) => Float64Array.from(row, (pair) => pair[0]));
    const left = both.map((row, i) => Float64Array.from(row, (pair, j) => i === j ? 0 : 2 / h * pair[1]));
    return { matrix, left };
  };
  const repulsion = ({ left }, x) => {  // row i: the sum over j of the gradient of k(x_i, x_j) in x_j
    const pulled = mix(left, x);
    return x.map((row, i) => { const own = sum(left[i]); return row.map((value, k) => own * value - pulled[i][k]); });
  };
  const ofFunctions = (view, kernel, width) => {  // distances are means over the measurement points
    const m = view.outputs[0].length, compared = gram(scale(m ** -0.5, view.outputs), kernel, width);
    return { matrix: compared.matrix, left: scale(1 / m, compared.left) };
  };

  // -- rules: the drift, and the noise where there is one ------------------------------------------------------------
  const svgd = (matrix, score, push) => scale(1 / matrix.length, add(mix(matrix, score), push));
  const RULES = {
    "de": (x, view) => ({ drift: view.score }),
    "sgld": (x, view, o, draws) => ({ drift: view.score, noise: scale(Math.SQRT2, draws) }),
    "w-svgd": (x, view, o) => {
      const K = gram(x, o.kernel, o.width);
      return { drift: svgd(K.matrix, view.score, repulsion(K, x)) };
    },
    "w-svgd with noise": (x, view, o, draws) => {
      const K = gram(x, o.kernel, o.width);
      const regular = K.matrix.map((row, i) => row.map((value, j) => value + (i === j ? 1e-6 : 0)));
      const noise = scale(Math.sqrt(2 / x.length), mix(cholesky(regular), draws));
      return { drift: svgd(regular, view.score, repulsion(K, x)), noise };
    },
    "kde-wgd": (x, view, o) => {
      const K = gram(x, o.kernel, o.width), push = repulsion(K, x);
      return { drift: view.score.map((row, i) => { const mass = sum(K.matrix[i]); return row.map((g, k) => g + push[i][k] / mass); }) };
    },
    "fw-svgd": (x, view, o) => {
      const K = ofFunctions(view, o.kernel, o.width);
      return { drift: svgd(K.matrix, view.score, view.pullback(repulsion(K, view.outputs))) };
    },
    "h-svgd": (x, view, o) => {
      const K = gram(x, o.kernel, o.width), F = ofFunctions(view, o.kernel, o.width);
      return { drift: svgd(K.matrix, view.score, view.pullback(repulsion(F, view.outputs))) };
    },
  };

  // -- problems: `view(particles)` has the score of every particle, and for networks their outputs -------------------
  const logSumExp = (values) => { const top = Math.max(...values); return top + Math.log(sum(values.map((v) => Math.exp(v - top)))); };
  const density = (title, logDensity, gradient) => ({
    title, logDensity, plane: true, d: 2, rate: 0.05, start: 0.6,
    view: (x) => ({ score: x.map((w) => Float64Array.from(gradient(w))) }),
  });
  const MODES = [[-1.6, -0.8], [1.6, 0.8]], WIDTH = 0.7;
  const modes = ([a, b]) => MODES.map(([p, q]) => -((a - p) ** 2 + (b - q) ** 2) / (2 * WIDTH ** 2));
  const PROBLEMS = {
    gaussian: density("Gaussian, correlated",
      ([a, b]) => -(a * a - 1.6 * a * b + b * b) / 0.72,
      ([a, b]) => [-(2 * a - 1.6 * b) / 0.72, -(2 * b - 1.6 * a) / 0.72]),
    modes: density("Two modes", (w) => logSumExp(modes(w)), (w) => {
      const logs = modes(w), total = logSumExp(logs);
      return [0, 1].map((k) => sum(logs.map((l, i) => Math.exp(l - total) * (MODES[i][k] - w[k]) / WIDTH ** 2)));
    }),
    ring: density("Ring",
      ([a, b]) => -((Math.hypot(a, b) - 1.8) ** 2) / 0.18,
      ([a, b]) => { const r = Math.max(Math.hypot(a, b), 1e-9), f = -(r - 1.8) / 0.09 / r; return [f * a, f * b]; }),
    banana: density("Banana",
      ([a, b]) => -a * a / 2.88 - (b - a * a / 2 + 1) ** 2 / 0.5,
      ([a, b]) => { const bent = (b - a * a / 2 + 1) / 0.25; return [-a / 1.44 + bent * a, -bent]; }),
  };

  // One hidden layer of tanh units, f(x) = c + sum_u a_u tanh(b_u x + s_u), prior N(0, 2^2) on every weight, noise 0.1.
  const UNITS = 8, PRIOR = 2, SIGMA = 0.1;
  const INPUTS = Float64Array.from([-1.5, -1.4, -1.25, -1.1, -1.0, -0.85, -0.7, 0.7, 0.8, 0.95, 1.1, 1.25, 1.4, 1.5]);
  const TARGETS = INPUTS.map((x, i) => Math.sin(2.2 * x) + 0.1 * Math.sin(97 * (i + 1)));
  const network = (w, inputs) => {
    const hidden = Array.from(inputs, (x) => Float64Array.from({ length: UNITS }, (_, u) => Math.tanh(w[UNITS + u] * x + w[2 * UNITS + u])));
    const outputs = Float64Array.from(hidden, (h) => { let f = w[3 * UNITS]; for (let u = 0; u < UNITS; u++) f += w[u] * h[u]; return f; });
    const back = (cotangent) => {  // J^T v
      const out = new Float64Array(w.length);
      hidden.forEach((h, b) => {
        out[3 * UNITS] += cotangent[b];
        for (let u = 0; u < UNITS; u++) {
          const inner = cotangent[b] * w[u] * (1 - h[u] ** 2);
          out[u] += cotangent[b] * h[u];
          out[UNITS + u] += inner * inputs[b];
          out[2 * UNITS + u] += inner;
        }
      });
      return out;
    };
    return { outputs, back };
  };
  const misfit = (outputs) => TARGETS.map((y, b) => y - outputs[b]);
  const logPosterior = (w) => -sum(misfit(network(w, INPUTS).outputs).map((e) => e * e)) / (2 * SIGMA ** 2) - sum(w.map((v) => v * v)) / (2 * PRIOR ** 2);
  const posteriorScore = (w, seen = network(w, INPUTS)) => {
    const errors = misfit(seen.outputs).map((e) => e / SIGMA ** 2), all = new Float64Array(seen.outputs.length);
    all.set(errors);  // further points have no label
    return seen.back(all).map((g, k) => g - w[k] / PRIOR ** 2);
  };
  const regression = (title, extra) => ({
    title, plane: false, d: 3 * UNITS + 1, rate: 0.02, start: 1,
    view: (x) => {
      const points = Float64Array.from([...INPUTS, ...extra]), seen = x.map((w) => network(w, points));
      return {
        score: x.map((w, i) => posteriorScore(w, seen[i])),
        outputs: seen.map((one) => one.outputs),
        pullback: (force) => seen.map((one, i) => one.back(force[i])),
      };
    },
  });
  PROBLEMS.regression = regression("Regression, functions compared at the data", []);
  PROBLEMS.outside = regression("Regression, functions compared everywhere", [-2.5, -2, -0.35, 0, 0.35, 2, 2.5]);

  // -- one step: Langevin in the plane and with noise, Adam for networks ---------------------------------------------
  const begin = (x) => ({ x, step: 0, first: rows(x.length, x[0].length), second: rows(x.length, x[0].length) });
  const advance = (problem, state, options, draws) => {
    const { drift, noise } = RULES[options.method](state.x, PROBLEMS[problem].view(state.x), options, draws);
    const step = state.step + 1, next = { ...state, step };
    if (PROBLEMS[problem].plane || noise) {
      const size = PROBLEMS[problem].plane ? options.rate : options.rate / 100;  // a network's posterior is steep
      next.x = add(state.x, drift, size);
      if (noise) next.x = add(next.x, noise, Math.sqrt(size));
      return next;
    }
    next.first = state.first.map((row, i) => row.map((m, k) => 0.9 * m + 0.1 * drift[i][k]));
    next.second = state.second.map((row, i) => row.map((v, k) => 0.999 * v + 0.001 * drift[i][k] ** 2));
    next.x = state.x.map((row, i) => row.map((w, k) => {
      const m = next.first[i][k] / (1 - 0.9 ** step), v = next.second[i][k] / (1 - 0.999 ** step);
      return w + options.rate * m / (Math.sqrt(v) + 1e-8);
    }));
    return next;
  };

  // -- random numbers, the same for the same seed --------------------------------------------------------------------
  const generator = (seed) => {
    let state = seed >>> 0;
    const uniform = () => {  // mulberry32
      state = (state + 0x6d2b79f5) >>> 0;
      let t = state;
      t = Math.imul(t ^ (t >>> 15), t | 1);
      t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
      return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
    const normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
    return { uniform, normals: (n, d, spread = 1) => rows(n, d).map((row) => row.map(() => spread * normal())) };
  };

  // The posterior of the network by Hamiltonian Monte Carlo: one draw of one chain, with the step size kept near an
  // acceptance of 0.8 while `warming`.
  const hamiltonian = (chain, random, warming) => {
    const [start] = random.normals(1, chain.w.length), size = chain.size * (0.7 + 0.6 * random.uniform());
    const w = Float64Array.from(chain.w), p = Float64Array.from(start), kick = (f) => posteriorScore(w).forEach((g, k) => { p[k] += f * size * g; });
    kick(0.5);
    for (let leap = 1; leap <= 25; leap++) { w.forEach((_, k) => { w[k] += size * p[k]; }); kick(leap < 25 ? 1 : 0.5); }
    const energy = (at, momentum) => logPosterior(at) - sum(momentum.map((v) => v * v)) / 2;
    const accepted = Math.min(1, Math.exp(energy(w, p) - energy(chain.w, start))) || 0;
    if (random.uniform() < accepted) chain.w = w;
    if (warming) chain.size *= Math.exp(0.05 * (accepted - 0.8));
  };

  return { PROBLEMS, RULES, PROFILES, INPUTS, TARGETS, PRIOR, advance, begin, generator, hamiltonian, network, logPosterior };
})();

(() => {
  const { PROBLEMS, advance, begin, generator, hamiltonian, network } = playground;
  const find = (id) => document.getElementById(id), stage = find("stage");
  const control = Object.fromEntries(["problem", "method", "kernel", "width", "members", "rate", "seed"].map((id) => [id, find(id)]));
  const SIZE = 480, SPAN = { plane: [-3.2, 3.2, -3.2, 3.2], network: [-3, 3, -3, 3] }, GRID = Float64Array.from({ length: 61 }, (_, i) => -3 + i / 10);
  const IN_WEIGHTS = ["de", "sgld", "w-svgd", "w-svgd with noise", "kde-wgd"];
  let state, random, trails, running = false, reference = null, quick = 1;

  const drawn = (name, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  const isPlane = () => PROBLEMS[control.problem.value].plane;
  const px = (x) => { const [a, b] = SPAN[isPlane() ? "plane" : "network"]; return (x - a) / (b - a) * SIZE; };
  const py = (y) => { const [, , a, b] = SPAN[isPlane() ? "plane" : "network"]; return SIZE - (y - a) / (b - a) * SIZE; };
  const path = (xs, ys) => Array.from(xs, (x, i) => (i ? "L" : "M") + px(x).toFixed(1) + " " + py(ys[i]).toFixed(1)).join("");
  const options = () => ({
    method: control.method.value, kernel: control.kernel.value,
    width: 10 ** +control.width.value, rate: PROBLEMS[control.problem.value].rate * 10 ** +control.rate.value,
  });
  const spread = (values) => { const mean = values.reduce((a, b) => a + b, 0) / values.length; return Math.sqrt(values.reduce((a, b) => a + (b - mean) ** 2, 0) / values.length); };

  const shade = () => {  // the density as one picture, and its own spread by a sum over the picture's points
    const canvas = document.createElement("canvas"), pen = canvas.getContext("2d"), [a, b] = SPAN.plane, n = canvas.width = canvas.height = 120;
    const at = (i) => a + (i + 0.5) / n * (b - a), values = [], logDensity = PROBLEMS[control.problem.value].logDensity;
    for (let r = 0; r < n; r++) for (let c = 0; c < n; c++) values.push([at(c), -at(r), logDensity([at(c), -at(r)])]);
    const top = Math.max(...values.map((v) => v[2])), image = pen.createImageData(n, n);
    let [mass, mx, my, square] = [0, 0, 0, 0];
    values.forEach(([x, y, log], i) => {
      const weight = Math.exp(log - top);
      image.data.set([0, 114, 178, 150 * weight], 4 * i);
      mass += weight; mx += weight * x; my += weight * y; square += weight * (x * x + y * y);
    });
    pen.putImageData(image, 0, 0);
    reference = { spread: Math.sqrt(square / mass - (mx / mass) ** 2 - (my / mass) ** 2) };
    stage.append(drawn("image", { href: canvas.toDataURL(), width: SIZE, height: SIZE, class: "smooth" }));
  };
  const sampler = () => {  // the posterior's band grows better while the page is open
    const own = generator(7), chains = own.normals(4, PROBLEMS.regression.d).map((w) => ({ w, size: 0.02 }));
    const sums = [new Float64Array(GRID.length), new Float64Array(GRID.length)];
    let draws = 0, kept = 0;
    return () => {
      if (draws >= 4000) return false;
      for (let i = 0; i < 3; i++, draws++) for (const chain of chains) {
        hamiltonian(chain, own, draws < 400);
        if (draws < 400) continue;
        network(chain.w, GRID).outputs.forEach((f, k) => { sums[0][k] += f; sums[1][k] += f * f; });
        kept++;
      }
      if (kept < 200) return true;
      const mean = sums[0].map((s) => s / kept), std = sums[1].map((s, k) => Math.sqrt(Math.max(s / kept - mean[k] ** 2, 0)));
      reference = { mean, std, kept };
      return true;
    };
  };
  let sample = null;

  const backdrop = () => {
    stage.replaceChildren();
    reference = null;
    if (isPlane()) shade();
    else {
      stage.append(drawn("path", { class: "area f7", id: "posterior" }));
      playground.INPUTS.forEach((x, i) => stage.append(drawn("circle", { class: "data", cx: px(x), cy: py(playground.TARGETS[i]), r: 4 })));
      sample = sampler();
    }
    stage.append(drawn("g", { id: "moving" }));
  };
  const draw = () => {
    const moving = find("moving"), nodes = [];
    const finite = state.x.filter((w) => w.every(Number.isFinite));
    let words = `Step ${state.step}. `;
    if (isPlane()) {
      trails.forEach((trail) => nodes.push(drawn("path", { class: "line thin s1", d: path(trail.map((p) => p[0]), trail.map((p) => p[1])) })));
      finite.forEach(([x, y]) => nodes.push(drawn("circle", { class: "dot f1", cx: px(x), cy: py(y), r: 4.5 })));
      const own = Math.hypot(spread(finite.map((w) => w[0])), spread(finite.map((w) => w[1])));
      words += `The members spread ${(own / reference.spread).toFixed(2)} times as wide as the density.`;
    } else {
      const functions = finite.map((w) => network(w, GRID).outputs);
      functions.forEach((f) => nodes.push(drawn("path", { class: "line s1 member", d: path(GRID, f) })));
      if (reference) {
        const edge = (sign) => Array.from(reference.mean, (m, k) => m + sign * 2 * reference.std[k]);
        find("posterior").setAttribute("d", path(GRID, edge(1)) + path([...GRID].reverse(), edge(-1).reverse()).replace("M", "L") + "Z");
        const near = (inside) => { const kept = [...GRID.keys()].filter((k) => inside(Math.abs(GRID[k]))); return kept.reduce((total, k) => total + spread(functions.map((f) => f[k])) / reference.std[k], 0) / kept.length; };
        const parts = { "at the data": (x) => x >= 0.7 && x <= 1.5, "between": (x) => x < 0.5, "outside": (x) => x > 1.8 };
        words += "Spread of the members over the posterior's: " + Object.entries(parts).map(([name, inside]) => `${near(inside).toFixed(2)} ${name}`).join(", ") + ".";
      } else words += "The posterior is being sampled.";
    }
    if (finite.length < state.x.length) words += ` ${state.x.length - finite.length} members left the picture: make the step smaller.`;
    moving.replaceChildren(...nodes);
    find("numbers").textContent = words;
    stage.setAttribute("aria-label", `${PROBLEMS[control.problem.value].title}, ${control.method.value}. ${words}`);
  };
  const move = (steps) => {
    const chosen = options(), n = state.x.length, d = state.x[0].length;
    for (let i = 0; i < steps; i++) state = advance(control.problem.value, state, chosen, random.normals(n, d));
    state.x.forEach((w, i) => { trails[i].push([w[0], w[1]]); if (trails[i].length > 60) trails[i].shift(); });
  };
  const restart = () => {
    const problem = PROBLEMS[control.problem.value];
    random = generator(+control.seed.value || 0);
    state = begin(random.normals(+control.members.value, problem.d, problem.start));
    trails = state.x.map(() => []);
    draw();
  };
  const frame = () => {
    if (sample && !isPlane() && sample() && !running) draw();
    if (running) {
      const started = performance.now();
      move(quick);
      draw();
      const took = performance.now() - started;  // as many steps as leave the page at ease, at most 20
      quick = isPlane() ? 1 : Math.max(1, Math.min(20, Math.round(quick * Math.min(2, 14 / took))));
    }
    requestAnimationFrame(frame);
  };
  const toggle = (on) => { running = on; find("run").textContent = on ? "Pause" : "Run"; find("run").setAttribute("aria-pressed", on); };
  const labels = () => {
    find("width-shown").textContent = `${(10 ** +control.width.value).toPrecision(2)} × the median's`;
    find("members-shown").textContent = control.members.value;
    find("rate-shown").textContent = options().rate.toPrecision(2);
    const coupled = !["de", "sgld"].includes(control.method.value);
    control.kernel.disabled = control.width.disabled = !coupled;
  };
  const fitting = () => {  // a density has no functions to compare
    for (const choice of control.method.options) choice.disabled = isPlane() && !IN_WEIGHTS.includes(choice.value);
    if (control.method.selectedOptions[0].disabled) control.method.value = "w-svgd";
  };

  control.problem.addEventListener("change", () => { fitting(); labels(); backdrop(); restart(); });
  for (const id of ["members", "seed", "method"]) control[id].addEventListener("input", () => { labels(); restart(); });
  for (const id of ["kernel", "width", "rate"]) control[id].addEventListener("input", labels);
  find("run").addEventListener("click", () => toggle(!running));
  find("one").addEventListener("click", () => { toggle(false); move(1); draw(); });
  find("again").addEventListener("click", restart);
  document.querySelector("header").hidden = window.self !== window.top;  // the page around it has a heading
  fitting(); labels(); backdrop(); restart(); requestAnimationFrame(frame);
})();
