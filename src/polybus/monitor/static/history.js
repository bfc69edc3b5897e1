// What happened before: traffic by window, and who calls whom.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { card, empty, h, head, known, s, scrolling, wire } from "./dom.js";
import { bytes, count, ms, rate, seconds } from "./format.js";

const EVERY = 15; // refreshes of the page between two of this view: windows are minutes long
const DRAWN = 40; // edges that can be told apart
const ROW = 30;
const TOP = 34;
const LETTER = 7.4; // the width of a letter

const sum = (values) => values.reduce((a, b) => a + b, 0);
const short = (text, room) => (text.length * LETTER <= room ? text : `${text.slice(0, Math.max(1, Math.floor(room / LETTER) - 1))}…`);
const percent = (part, whole) => (part ? `${((part / whole) * 100).toFixed(1)} %` : "0 %");

function cells(label, heads, rows) {
  const kind = (i) => heads[i][1] || null;
  const top = heads.map(([text, k]) => h("th", { class: k === "n" ? "n" : null, scope: "col" }, text));
  const body = rows.map((row) => h("tr", null, row.map((cell, i) => h("td", { class: kind(i), "data-label": heads[i][0] }, h("div", null, cell)))));
  return scrolling(label, h("table", { class: "cards" }, h("thead", null, h("tr", null, top)), h("tbody", null, body)));
}

// Busiest first, so that thick lines do not cross the whole drawing.
function order(edges, side) {
  const calls = new Map();
  for (const edge of edges) calls.set(edge[side], (calls.get(edge[side]) ?? 0) + edge.calls);
  return [...calls].sort((a, b) => b[1] - a[1]).map(([name]) => name);
}

function drawing(edges, width) {
  const shown = edges.slice(0, DRAWN);
  const left = order(shown, "caller");
  const right = order(shown, "name");
  const margin = width * 0.34;
  const y = (list, name) => TOP + ROW * list.indexOf(name) + ROW / 2;
  const busiest = Math.max(1, ...shown.map((edge) => edge.calls));
  const ends = [margin, width - margin];
  const middle = width / 2;
  const lines = shown.map((edge) => {
    const share = edge.errors / edge.calls;
    const from = y(left, edge.caller);
    const to = y(right, edge.name);
    const told = `${edge.caller || "?"} → ${edge.name}: ${count(edge.calls)} calls, ${rate(edge.rate)}, ${percent(edge.errors, edge.calls)} errors, p99 ${ms(edge.p99_ms)}`;
    const d = `M${ends[0]} ${from}C${middle} ${from} ${middle} ${to} ${ends[1]} ${to}`;
    return s("path", { class: `edge ${share >= 0.05 ? "c-bad" : share > 0 ? "c-warn" : `c-${known(edge.protocol_out)}`}`, d, "stroke-width": (1.5 + 8 * Math.sqrt(edge.calls / busiest)).toFixed(1) }, s("title", null, told));
  });
  const label = (name, list, x, anchor) => {
    const at = y(list, name);
    const full = name || "?";
    return [
      s("circle", { class: "knot", cx: x, cy: at, r: 5 }),
      s("text", { x: anchor === "end" ? x - 12 : x + 12, y: at + 4.5, "text-anchor": anchor }, short(full, margin - 16), s("title", null, full)),
    ];
  };
  const height = TOP + ROW * Math.max(left.length, right.length) + 6;
  return s(
    "svg",
    { class: "graph", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `Who calls whom: ${shown.length} connections between ${left.length} callers and ${right.length} names; the table below has the same` },
    s("text", { class: "side-label", x: ends[0] - 12, y: 18, "text-anchor": "end" }, "who calls"),
    s("text", { class: "side-label", x: ends[1] + 12, y: 18 }, "who answers"),
    lines,
    left.map((name) => label(name, left, ends[0], "end")),
    right.map((name) => label(name, right, ends[1], "start")),
  );
}

function showTraffic(place, found) {
  if (!found.rows) {
    place.replaceChildren(empty("No traffic history yet", "The pipeline sums up the node's journal by minute, protocol and name.", "polybus pipeline traffic --lake ./lake"));
    return;
  }
  const unit = found.window_ms === 60000 ? "minute" : seconds(found.window_ms / 1000);
  const chart = (label, pick) => {
    const made = new Chart(label, count, "last");
    const series = found.series.map((each) => ({ name: each.protocol, colour: known(each.protocol), values: pick(each) }));
    made.update(found.times_ms, series.filter((each) => sum(each.values)));
    return made.node;
  };
  const calls = (each) => each.calls.map((n, i) => n + each.publications[i]);
  place.replaceChildren(
    h(
      "div",
      { class: "grid" },
      card("Calls and publications", `per ${unit}, by protocol`, chart(`Calls and publications per ${unit}`, calls)),
      card("Errors", `per ${unit}, by protocol`, chart(`Errors per ${unit}`, (each) => each.errors)),
    ),
    card(
      "Busiest names",
      `of ${count(found.rows)} rows in ${found.topic}`,
      cells(
        "Busiest names",
        [["Name", "name"], ["Protocol", ""], ["Calls", "n"], ["Publications", "n"], ["Errors", "n"], ["Bytes", "n"], ["Worst p99", "n"]],
        found.names.slice(0, 20).map((each) => [each.name, wire(each.protocol), count(each.calls), count(each.publications), count(each.errors), bytes(each.bytes), ms(each.worst_p99_ms)]),
      ),
    ),
  );
}

function showGraph(place, found) {
  if (!found.edges.length) {
    place.replaceChildren(card("Call graph", "", empty("No calls in the journal", "The node notes what goes through it in polybus.journal once its configuration says so.", "[journal] enabled = true")));
    return;
  }
  const room = h("div", { class: "graph-room" });
  const period = seconds(Math.max(1, (found.to_ms - found.from_ms) / 1000));
  place.replaceChildren(
    card("Call graph", `${count(found.rows)} newest rows of the journal, ${period}`, room),
    card(
      "Calls",
      "by who called whom",
      cells(
        "Calls by who called whom",
        [["Answered by", "name"], ["Called by", "wrap wide"], ["From", ""], ["To", ""], ["Calls", "n"], ["Rate", "n"], ["Errors", "n"], ["p99", "n"]],
        found.edges.slice(0, DRAWN).map((edge) => [edge.name, edge.caller || "?", wire(edge.protocol_in), wire(edge.protocol_out), count(edge.calls), rate(edge.rate), percent(edge.errors, edge.calls), ms(edge.p99_ms)]),
      ),
    ),
  );
  room.replaceChildren(drawing(found.edges, Math.max(280, room.clientWidth)));
}

export function history(place) {
  const traffic = h("div", { class: "view" });
  const graph = h("div", { class: "view" });
  const trouble = h("p", { class: "problem", role: "alert", hidden: true });
  place.replaceChildren(head("History", "Traffic before this page was opened, and who calls whom."), trouble, traffic, graph);

  async function load() {
    try {
      const [past, calls] = await Promise.all([get("/history/traffic"), get("/history/graph")]);
      trouble.hidden = true;
      showTraffic(traffic, past);
      showGraph(graph, calls);
    } catch (problem) {
      trouble.textContent = [problem.message, problem.hint].filter(Boolean).join(" ");
      trouble.hidden = false;
    }
  }

  let asked = 0;
  load();
  return () => {
    asked += 1;
    if (asked % EVERY === 0) load();
  };
}
