"use strict";
(() => {
  const body = document.querySelector("#runs tbody"), state = document.getElementById("state");
  const curves = document.getElementById("curves"), heading = document.getElementById("chosen");
  const hint = document.getElementById("hint");
  const rows = new Map();
  let chosen = null;

  const make = (name, text, attributes = {}) => {
    const node = document.createElement(name);
    node.textContent = text;
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  const drawn = (name, attributes, text = "") => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.textContent = text;
    return node;
  };
  const short = (value) => typeof value === "number" ? String(+value.toPrecision(4)) : "";
  const left = (seconds) => {
    if (typeof seconds !== "number") return "";
    const minutes = Math.floor(seconds / 60);
    return minutes ? `${minutes} min` : `${Math.round(seconds)} s`;
  };

  // Only cells that changed are touched: a hundred runs are no work.
  const write = (cell, text) => { if (cell.textContent !== text) cell.textContent = text; };
  const line = (run) => {
    const row = document.createElement("tr");
    const head = make("th", "", { scope: "row" });
    const button = make("button", run.name, { type: "button", title: run.run });
    button.addEventListener("click", () => choose(run.run, run.name));
    head.append(button);
    row.append(head, ...Array.from({ length: 6 }, () => make("td", "")));
    const link = make("a", "report", { href: "/report?run=" + encodeURIComponent(run.run) });
    const last = document.createElement("td");
    last.append(link);
    row.append(last);
    body.append(row);
    return row;
  };
  const update = (runs) => {
    const seen = new Set();
    for (const run of runs) {
      seen.add(run.run);
      if (!rows.has(run.run)) rows.set(run.run, line(run));
      const cells = rows.get(run.run).cells;
      write(cells[1], run.state);
      cells[1].title = run.reason || "";
      write(cells[2], run.method);
      write(cells[3], `${run.step} of ${run.steps}`);
      write(cells[4], left(run.seconds_left));
      write(cells[5], typeof run.alive === "number" ? `${run.alive} of ${run.members}` : "");
      write(cells[6], short(run.metrics && run.metrics.test_nll));
    }
    for (const [name, row] of rows) if (!seen.has(name)) { row.remove(); rows.delete(name); }
    const running = runs.filter((run) => run.state === "running").length;
    write(state, `${runs.length} runs, ${running} running.`);
  };

  const chart = (title, pairs) => {
    const figure = document.createElement("figure"), [w, h, l, b] = [420, 200, 60, 24];
    const svg = drawn("svg", { viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": `${title}, last ${short(pairs.at(-1)[1])}` });
    const [xs, ys] = [0, 1].map((i) => pairs.map((pair) => pair[i]));
    const span = (values) => { const [a, z] = [Math.min(...values), Math.max(...values)]; return a === z ? [a - 1, z + 1] : [a, z]; };
    const [x0, x1] = span(xs), [y0, y1] = span(ys);
    const px = (x) => l + (x - x0) / (x1 - x0) * (w - l - 20), py = (y) => h - b - (y - y0) / (y1 - y0) * (h - b - 10);
    svg.append(drawn("path", { class: "axis", d: `M${l} 10V${h - b}H${w - 20}` }));
    svg.append(drawn("path", { class: "line s0", d: pairs.map((p, i) => (i ? "L" : "M") + px(p[0]).toFixed(1) + " " + py(p[1]).toFixed(1)).join("") }));
    for (const [y, at] of [[y0, h - b], [y1, 18]]) svg.append(drawn("text", { x: l - 6, y: at, "text-anchor": "end" }, short(y)));
    for (const [x, anchor] of [[x0, "start"], [x1, "end"]]) svg.append(drawn("text", { x: px(x), y: h - 6, "text-anchor": anchor }, "step " + short(x)));
    figure.append(make("figcaption", `${title}: ${short(pairs.at(-1)[1])}`), svg);
    return figure;
  };
  const draw = async () => {
    if (chosen === null) return;
    const answer = await fetch("/curves?run=" + encodeURIComponent(chosen));
    if (!answer.ok) return;
    const found = await answer.json();
    curves.replaceChildren(...Object.entries(found).map(([name, pairs]) => chart(name.replaceAll("_", " "), pairs)));
    hint.textContent = Object.keys(found).length ? "" : "Nothing is logged yet.";
  };
  const choose = (run, name) => {
    chosen = run;
    heading.textContent = "Curves of " + name;
    draw();
  };

  const tick = async () => {
    try {
      const answer = await fetch("/runs");
      if (answer.ok) update(await answer.json());
      await draw();
    } catch {
      write(state, "stein watch does not answer; start it again.");
    }
    setTimeout(tick, 2000);
  };
  tick();
})();
