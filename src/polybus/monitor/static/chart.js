// Line charts and sparklines as plain SVG.

import { h, s } from "./dom.js";
import { moment, seconds } from "./format.js";

const W = 600;
const H = 100;

function nice(max) {
  if (max <= 0) return 2;
  const power = 10 ** Math.floor(Math.log10(max));
  // Half of it stands in the middle of the axis, and should be as round.
  for (const step of power < 10 ? [2, 4, 6, 8] : [1, 2, 3, 4, 5, 6, 8]) if (max <= step * power) return step * power;
  return 10 * power;
}

function path(values, top) {
  const last = Math.max(1, values.length - 1);
  return values.map((v, i) => `${i ? "L" : "M"}${((i / last) * W).toFixed(1)} ${(H - (v / top) * H).toFixed(1)}`).join("");
}

// A chart of several series over the same moments. `show(value)` writes a number; `end` is what the last moment is
// called: "now", or anything else for a chart of the past, whose moments are then told by their date.
export class Chart {
  constructor(label, show, end = "now") {
    this.show = show;
    this.end = end;
    this.label = label;
    this.svg = s("svg", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img", "aria-label": `${label}: nothing yet` });
    this.ticks = [0, 1, 2].map((n) => h("span", { class: `tick t${n}` }));
    this.plot = h("div", { class: "plot" }, this.svg, this.ticks);
    this.legend = h("div", { class: "legend" });
    this.from = h("span");
    this.to = h("span");
    this.node = h("div", { class: "chart" }, this.plot, h("div", { class: "times" }, this.from, this.to), this.legend);
    this.at = null;
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => {
      this.at = null;
      this.draw();
    });
  }

  // `series` is a list of {name, colour, values}.
  update(times, series) {
    this.times = times;
    this.series = series;
    this.draw();
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    this.at = share < 0 || share > 1 || !this.times ? null : Math.round(share * (this.times.length - 1));
    this.draw();
  }

  draw() {
    if (!this.times) return;
    const top = nice(Math.max(0, ...this.series.flatMap((each) => each.values)));
    const nodes = [0, H / 2, H].map((y) => s("line", { class: "rule", x1: 0, x2: W, y1: y, y2: y }));
    for (const { colour, values } of this.series) {
      if (!values.some((value) => value > 0)) continue; // a line along the axis says nothing
      const line = path(values, top);
      nodes.push(s("path", { class: `area c-${colour}`, d: `${line}L${W} ${H}L0 ${H}Z` }));
      nodes.push(s("path", { class: `line c-${colour}`, d: line }));
    }
    const last = this.times.length - 1;
    if (this.at !== null && last > 0) {
      const x = (Math.min(this.at, last) / last) * W;
      nodes.push(s("line", { class: "cursor", x1: x, x2: x, y1: 0, y2: H }));
    }
    this.svg.replaceChildren(...nodes);
    this.ticks[0].textContent = "0";
    this.ticks[1].textContent = this.show(top / 2);
    this.ticks[2].textContent = this.show(top);
    const index = this.at === null ? last : Math.min(this.at, last);
    const words = this.series.map(({ name, colour, values }) => [name, colour, this.show(values[index] ?? 0)]);
    this.legend.replaceChildren(
      ...words.map(([name, colour, value]) =>
        h("span", { class: "wire" }, h("span", { class: `dot ${colour}` }), name, h("b", null, value)),
      ),
    );
    const when = (i) => (this.end === "now" ? `${seconds((this.times[last] - this.times[i]) / 1000)} ago` : moment(this.times[i]));
    this.from.textContent = this.times.length ? when(0) : "";
    this.to.textContent = !this.times.length ? "" : this.at === null && this.end === "now" ? "now" : when(index);
    this.svg.setAttribute("aria-label", `${this.label}: ${words.map(([n, , v]) => `${n} ${v}`).join(", ") || "nothing yet"}`);
  }
}

export function spark(values, colour, label) {
  const top = Math.max(1, ...values);
  const svg = s("svg", { class: "spark", viewBox: `0 -4 ${W} ${H + 8}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  if (values.length > 1) {
    const line = path(values, top);
    svg.append(s("path", { class: `area c-${colour}`, d: `${line}L${W} ${H}L0 ${H}Z` }), s("path", { class: `line c-${colour}`, d: line }));
  }
  return svg;
}
