// The whole bus at a glance.

import { get, listen } from "./api.js";
import { Chart, spark } from "./chart.js";
import { card, empty, h, head, known, scrolling, wire } from "./dom.js";
import { bytes, count, ms, rate, seconds } from "./format.js";

const POINTS = 120;

function tile(label, href) {
  const value = h("div", { class: "value" }, "–");
  const past = h("div", { class: "past" });
  const note = h("div", { class: "note" });
  const node = h(href ? "a" : "div", { class: "tile", href }, h("div", { class: "label" }, label), h("div", { class: "both" }, value, past), note);
  return {
    node,
    set: (v, n = "") => ((value.textContent = v), (note.textContent = n)),
    mark: (c) => (node.className = `tile ${c}`),
    draw: (values, colour) => past.replaceChildren(...(values.some((v) => v > 0) ? [spark(values, colour, `${label} over the last minutes`)] : [])),
  };
}

function pairs(entries) {
  return h("dl", { class: "pairs" }, entries.map(([k, v]) => [h("dt", null, k), h("dd", null, v)]));
}

export function overview(place) {
  const state = h("span", { class: "badge" }, "…");
  const tiles = {
    connections: tile("Connections", "#/connections"),
    services: tile("Services", "#/services"),
    calls: tile("Calls", "#/services"),
    topics: tile("Topics", "#/topics"),
    produced: tile("Produced", "#/topics"),
    lag: tile("Group lag", "#/groups"),
    dead: tile("Dead letters", "#/dead"),
    failures: tile("Failures"),
    loop: tile("Loop lag"),
    disk: tile("Disk free"),
  };
  const charts = {
    in: new Chart("Messages received per second", rate),
    out: new Chart("Messages sent per second", rate),
    work: new Chart("Calls and produced records per second", rate),
    lag: new Chart("Records waiting in groups", count),
  };
  const wires = h("tbody");
  const wireTable = scrolling(
    "Protocols",
    h(
      "table",
      { class: "cards" },
      h("thead", null, h("tr", null, h("th", { scope: "col" }, "Protocol"), ["Connections", "Services", "In", "Out", "Bytes in", "Bytes out", "Calls", "Failures"].map((t) => h("th", { class: "n", scope: "col" }, t)))),
      wires,
    ),
  );
  const start = h("section", { class: "card", hidden: true });
  const node = h("div");
  const ended = h("div");
  place.replaceChildren(
    head("Overview", "What this bus is doing now.", state),
    start,
    h("div", { class: "tiles" }, Object.values(tiles).map((t) => t.node)),
    h(
      "div",
      { class: "grid" },
      card("Received", "messages per second, by protocol", charts.in.node),
      card("Sent", "messages per second, by protocol", charts.out.node),
      card("Work", "calls answered, records produced, failures", charts.work.node),
      card("Waiting", "records that groups have not confirmed", charts.lag.node),
    ),
    card("Protocols", "all on one port", wireTable),
    h("div", { class: "grid" }, card("Node", "", node), card("Ended connections", "since the start, by reason", ended)),
  );

  let history = null;
  get("/overview", { history: POINTS }).then((found) => {
    history = found.history;
    update(found);
  }, () => {});

  function push(now) {
    if (!history) return;
    const length = history.times_ms.length;
    if (length && now.time_ms - history.times_ms[length - 1] < 500) return;
    history.times_ms.push(now.time_ms);
    history.calls_rate.push(now.wires.reduce((sum, w) => sum + w.calls_rate, 0));
    history.produce_rate.push(now.produce_rate);
    history.failures_rate.push(Math.max(0, now.failures - (push.failures ?? now.failures)));
    history.lag.push(now.lag);
    history.connections.push(now.connections);
    history.loop_lag_ms.push(now.loop_lag_ms);
    push.failures = now.failures;
    for (const [field, source] of [["in_rate", "in_rate"], ["out_rate", "out_rate"]]) {
      for (const w of now.wires) history[field][w.protocol] ??= Array(length).fill(0);
      for (const [name, values] of Object.entries(history[field])) {
        values.push(now.wires.find((w) => w.protocol === name)?.[source] ?? 0);
      }
    }
    const lists = [history.times_ms, history.calls_rate, history.produce_rate, history.failures_rate, history.lag, history.connections, history.loop_lag_ms];
    for (const values of [...lists, ...Object.values(history.in_rate), ...Object.values(history.out_rate)]) {
      while (values.length > POINTS) values.shift();
    }
  }

  function draw() {
    if (!history) return;
    const byWire = (field) =>
      Object.entries(history[field])
        .filter(([name, values]) => values.some((v) => v > 0) || name === "native")
        .map(([name, values]) => ({ name, colour: known(name), values }));
    charts.in.update(history.times_ms, byWire("in_rate"));
    charts.out.update(history.times_ms, byWire("out_rate"));
    charts.work.update(history.times_ms, [
      { name: "calls", colour: "accent", values: history.calls_rate },
      { name: "produced", colour: "good", values: history.produce_rate },
      { name: "failures", colour: "bad", values: history.failures_rate },
    ]);
    charts.lag.update(history.times_ms, [{ name: "lag", colour: "warn", values: history.lag }]);
    tiles.connections.draw(history.connections, "accent");
    tiles.calls.draw(history.calls_rate, "accent");
    tiles.produced.draw(history.produce_rate, "good");
    tiles.lag.draw(history.lag, "warn");
    tiles.failures.draw(history.failures_rate, "bad");
    tiles.loop.draw(history.loop_lag_ms, "http");
  }

  function update(now) {
    if (!now) {
      state.textContent = "not reachable";
      state.className = "badge bad";
      return;
    }
    state.textContent = now.state;
    state.className = now.ready ? "badge good" : "badge warn";
    const calls = now.wires.reduce((sum, w) => sum + w.calls_rate, 0);
    tiles.connections.set(count(now.connections), `${count(now.accepted)} accepted ever`);
    tiles.services.set(count(now.services), "names with an answer");
    tiles.calls.set(rate(calls), `${count(now.pending_calls)} waiting`);
    tiles.topics.set(count(now.topics), `${count(now.records)} records, ${bytes(now.stored_bytes)}`);
    tiles.produced.set(rate(now.produce_rate), "records on disk");
    tiles.lag.set(count(now.lag), `${count(now.groups)} groups, ${count(now.in_flight)} in flight`);
    tiles.dead.set(count(now.dead), `${count(now.redelivered)} redelivered`);
    tiles.dead.mark(now.dead ? "warn" : "");
    tiles.failures.set(count(now.failures), `${count(now.dropped)} messages dropped`);
    tiles.failures.mark(now.dropped ? "warn" : "");
    tiles.loop.set(ms(now.loop_lag_ms), "worst of the last 10 s");
    tiles.loop.mark(now.loop_lag_ms > 100 ? "bad" : now.loop_lag_ms > 25 ? "warn" : "");
    if (now.disk) {
      const share = now.disk.free_bytes / now.disk.total_bytes;
      tiles.disk.set(bytes(now.disk.free_bytes), `${Math.round(share * 100)} % of ${bytes(now.disk.total_bytes)}`);
      tiles.disk.mark(share < 0.05 ? "bad" : share < 0.15 ? "warn" : "");
    } else tiles.disk.set("–", "this node keeps no topics");
    wires.replaceChildren(
      ...now.wires.map((w) =>
        h(
          "tr",
          null,
          h("td", { class: "name" }, wire(w.protocol)),
          [["Connections", count(w.connections)], ["Services", count(w.services)], ["In", rate(w.in_rate)], ["Out", rate(w.out_rate)], ["Bytes in", `${bytes(w.bytes_in_rate)}/s`], ["Bytes out", `${bytes(w.bytes_out_rate)}/s`], ["Calls", count(w.calls)], ["Failures", count(w.failures)]].map(
            ([label, text]) => h("td", { class: "n", "data-label": label }, text),
          ),
        ),
      ),
    );
    wireTable.hidden = !now.wires.length;
    // The page itself speaks HTTP, so that alone is nobody.
    start.hidden = now.wires.some((w) => w.protocol !== "http" && w.protocol !== "rmb");
    if (!start.hidden && !start.childElementCount) {
      start.append(empty("Nobody has connected yet", `Clients of GSB, T2, Zbus and the SDK connect to ${now.addresses.join(" or ")}. To see something happen:`, "polybus sub 'price/**'"));
    }
    node.replaceChildren(
      pairs([
        ["Version", now.version],
        ["Up for", seconds(now.uptime_s)],
        ["Listens on", now.addresses.join(", ") || "this process only"],
        ["Queued for peers", bytes(now.pending_bytes)],
        ["Topics lie in", now.disk?.folder ?? "–"],
      ]),
    );
    const reasons = Object.entries(now.ended);
    ended.replaceChildren(reasons.length ? pairs(reasons.map(([reason, n]) => [reason, count(n)])) : h("p", { class: "muted" }, "None so far."));
  }

  return listen((now) => {
    if (now) push(now);
    update(now);
    draw();
  });
}
