"use strict";
(() => {
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const tip = document.getElementById("tip");
  const hidden = new Set();

  // Light or dark: the system's choice until the button is used.
  const theme = document.getElementById("theme"), root = document.documentElement;
  if (theme) {
    theme.hidden = false;
    theme.addEventListener("click", () => {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
    });
  }

  // Methods on and off: everything with the method's key.
  for (const box of all("[data-switch]")) {
    box.addEventListener("change", () => {
      hidden[box.checked ? "delete" : "add"](box.dataset.switch);
      for (const part of all("[data-key]")) if (part.dataset.key === box.dataset.switch) part.toggleAttribute("hidden", !box.checked);
    });
  }

  // A table is sorted by the numbers in its cells, then by text; a second click turns it round.
  for (const table of all("table.sortable")) {
    const heads = all("thead th", table), body = table.tBodies[0];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (row) => {
        const cell = row.cells[column], number = parseFloat(cell.dataset.value);
        return column === 0 ? cell.textContent.trim() : number;
      };
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (typeof x === "string") return up ? x.localeCompare(y) : y.localeCompare(x);
        if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y); // what is missing comes last
        return up ? x - y : y - x;
      });
      body.append(...rows);
    }));
  }

  const short = (value) => {
    if (typeof value !== "number") return String(value);
    const size = Math.abs(value);
    return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : String(+value.toPrecision(4));
  };
  const place = (axis, value) => {
    const [low, high, from, to, log] = axis;
    const t = log ? (Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low)) : (value - low) / (high - low);
    return from + t * (to - from);
  };
  const show = (text, left, top) => {
    tip.textContent = text;
    tip.hidden = false;
    tip.style.left = Math.max(4, Math.min(left + 14, scrollX + root.clientWidth - tip.offsetWidth - 6)) + "px";
    tip.style.top = top + 14 + "px";
  };

  // Values under the pointer, or under the arrow keys.
  for (const figure of all("figure.chart")) {
    const svg = figure.querySelector("svg"), block = figure.querySelector(":scope > script");
    if (!svg || !block) continue;
    const data = JSON.parse(block.textContent);
    figure.data = data;
    if (!data.x) continue;
    const marks = svg.querySelector(".marks");
    const stops = data.series ? [...new Set(data.series.flatMap((series) => series.x))].sort((a, b) => a - b) : [];
    let at = -1;

    const clear = () => { marks.replaceChildren(); tip.hidden = true; };
    const draw = (name, attributes) => {
      const node = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
      marks.append(node);
    };
    const onPage = (x, y) => {
      const point = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
      return [point.x + scrollX, point.y + scrollY];
    };
    const shown = () => data.series.filter((series) => !series.key || !hidden.has(series.key));

    const lines = (x) => { // every series at the value nearest to x
      const said = [];
      let at = null;
      marks.replaceChildren();
      for (const series of shown()) {
        let best = -1;
        series.x.forEach((value, i) => { if (series.y[i] !== null && (best < 0 || Math.abs(value - x) < Math.abs(series.x[best] - x))) best = i; });
        if (best < 0) continue;
        at = at === null || Math.abs(series.x[best] - x) < Math.abs(at - x) ? series.x[best] : at;
        said.push([series, best]);
      }
      if (at === null) return clear();
      const px = place(data.x, at), text = [];
      draw("path", { class: "cursor", d: `M${px} ${data.y[3]}V${data.y[2]}` });
      for (const [series, i] of said) {
        if (Math.abs(place(data.x, series.x[i]) - px) > 12) continue;
        draw("circle", { class: `cursor-dot f${series.c}`, r: 3.5, cx: place(data.x, series.x[i]), cy: place(data.y, series.y[i]) });
        text.push((series.name ? series.name + ": " : "") + short(series.y[i]) + (series.error ? " ± " + short(series.error[i]) : ""));
      }
      show(`${data.xlabel} ${short(data.names ? data.names[at] : at)}\n${text.join("\n")}`, ...onPage(px, data.y[3]));
    };
    const points = (px, py) => { // the nearest point
      let best = null;
      for (const series of shown()) series.x.forEach((x, i) => {
        if (series.y[i] === null) return;
        const away = Math.hypot(place(data.x, x) - px, place(data.y, series.y[i]) - py);
        if (!best || away < best.away) best = { away, series, i };
      });
      if (!best || best.away > 40) return clear();
      const { series, i } = best, cx = place(data.x, series.x[i]), cy = place(data.y, series.y[i]);
      marks.replaceChildren();
      draw("circle", { class: `cursor-dot f${series.c}`, r: 5, cx, cy });
      const between = series.low ? `\n${short(series.low[i])} to ${short(series.high[i])}` : "";
      show(`${series.name ? series.name + "\n" : ""}${series.labels ? series.labels[i] + "\n" : ""}${data.xlabel} ${short(series.x[i])}\n${data.ylabel} ${short(series.y[i])}${between}`, ...onPage(cx, cy));
    };
    const cells = (px, py) => { // of a matrix or a map
      const column = Math.floor((px - data.x[2]) / (data.x[3] - data.x[2]) * data.columns);
      const row = Math.floor((py - data.y[3]) / (data.y[2] - data.y[3]) * data.rows);
      if (column < 0 || row < 0 || column >= data.columns || row >= data.rows) return clear();
      const [x, y] = [data.x[2] + (column + .5) / data.columns * (data.x[3] - data.x[2]), data.y[3] + (row + .5) / data.rows * (data.y[2] - data.y[3])];
      const value = (data.values.charCodeAt(row * data.columns + column) - 35) / 90;
      marks.replaceChildren();
      draw("circle", { class: "cursor-dot f4", r: 4, cx: x, cy: y });
      const where = data.members ? `members ${data.members[row] + 1} and ${data.members[column] + 1}\n` : "";
      show(`${where}${data.ylabel} ${value.toFixed(2)}`, ...onPage(x, y));
    };
    const look = (x, y) => data.values ? cells(x, y) : data.points ? points(x, y) : lines(back(x));
    const back = (px) => {
      const [low, high, from, to, log] = data.x, t = (px - from) / (to - from);
      return log ? low * Math.pow(high / low, t) : low + t * (high - low);
    };
    svg.addEventListener("pointermove", (event) => {
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      look(point.x, point.y);
    });
    svg.addEventListener("pointerleave", clear);
    svg.addEventListener("blur", clear);
    let cell = [0, 0];
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
      if (event.key === "Escape") return clear();
      if (!step) return;
      if (data.values) {
        cell = [0, 1].map((i) => Math.max(0, Math.min(cell[i] + step[i], (i ? data.rows : data.columns) - 1)));
        cells(data.x[2] + (cell[0] + .5) / data.columns * (data.x[3] - data.x[2]), data.y[3] + (cell[1] + .5) / data.rows * (data.y[2] - data.y[3]));
      } else if (stops.length && step[0]) {
        at = Math.max(0, Math.min(at + step[0], stops.length - 1));
        if (data.points) {
          const series = shown().find((one) => one.x.includes(stops[at]));
          if (series) points(place(data.x, stops[at]), place(data.y, series.y[series.x.indexOf(stops[at])]));
        } else lines(stops[at]);
      } else return;
      event.preventDefault();
    });
  }

  // A slider moves every panel of its group through the snapshots.
  for (const group of all(".frames")) {
    const slider = group.querySelector("input[type=range]"), output = group.querySelector("output");
    if (!slider) continue;
    const steps = JSON.parse(group.querySelector("script.steps").textContent);
    slider.addEventListener("input", () => {
      const at = +slider.value;
      output.textContent = steps[at];
      for (const figure of all("figure.chart", group)) {
        const frame = figure.data && figure.data.frames && figure.data.frames[at];
        if (!frame) continue;
        for (const part of all("[data-part]", figure)) {
          const value = frame[part.dataset.part];
          part.setAttribute(part.tagName === "image" ? "href" : "d", value || "");
        }
        for (const name of ["values", "members", "rows", "columns"]) if (frame[name]) figure.data[name] = frame[name];
        if (frame.series) figure.data.series = frame.series;
      }
    });
  }

  // Paper shows what is folded away.
  addEventListener("beforeprint", () => { for (const one of all("details")) one.open = true; });
})();
