// The lists: topics, groups, services, connections, dead letters, trackers and twins.

import { get, latest, part } from "./api.js";
import { spark } from "./chart.js";
import { addTopic, call, disconnect, resetGroup } from "./dialogs.js";
import { card, empty, h, head, scrolling, wire } from "./dom.js";
import { ago, bytes, count, ms, rate, seconds } from "./format.js";
import { Table } from "./table.js";

const PROTOCOLS = ["native", "gsb", "t2", "zbus", "rmb", "http"];
const NAMED = 2; // members of a group that are named in its row
const n = "n";
const topicLink = (name) => h("a", { href: `#/topics/${part(name)}`, "data-act": "open" }, name);
const act = (name, label, text, run) => h("button", { class: "small", type: "button", "data-act": name, "aria-label": label, onclick: run }, text);

function list(place, title, sub, table, ...actions) {
  place.replaceChildren(head(title, sub, ...actions), table.node);
  table.refresh();
  return () => table.refresh();
}

function marks(found) {
  const mask = Number(found["zbus.mask"] ?? 0);
  return mask ? h("span", { class: "sub" }, `zbus mask ${mask}${mask & 2 ? " (rpc)" : ""}`) : null;
}

export function topics(place, admin) {
  const table = new Table({
    path: "/topics",
    label: "Topics",
    search: "Search topics",
    sort: "name",
    key: (t) => t.name,
    columns: [
      { label: "Topic", sort: "name", class: "name", cell: (t) => [topicLink(t.name), marks(t.marks), t.dead_letters ? h("span", { class: "sub" }, "dead letters") : null] },
      { label: "Records", sort: "records", class: n, cell: (t) => count(t.records) },
      { label: "Size", sort: "bytes", class: n, cell: (t) => bytes(t.bytes) },
      { label: "Rate", sort: "rate", class: n, cell: (t) => rate(t.rate) },
      { label: "Oldest", sort: "oldest_ms", class: n, cell: (t) => (t.records ? ago(t.oldest_ms) : "–") },
      { label: "Newest", sort: "newest_ms", class: n, cell: (t) => (t.records ? ago(t.newest_ms) : "–") },
      { label: "Groups", sort: "groups", class: n, cell: (t) => count(t.groups) },
      { label: "Consumers", class: n, cell: (t) => count(t.consumers) },
    ],
    empty: () => empty("No topics yet", "A topic keeps records on disk, for every group to read at its own pace. To add one:", "polybus topic add orders/eu"),
  });
  const add = admin ? [h("button", { class: "primary", type: "button", onclick: () => addTopic(() => table.refresh()) }, "Add topic")] : [];
  return list(place, "Topics", "Durable logs, read by offset.", table, ...add);
}

export function groups(place, admin, params = {}) {
  const table = groupTable(admin, params);
  return list(place, "Groups", "Who reads which topic, and how far they are.", table);
}

export function groupTable(admin, params = {}) {
  const table = new Table({
    path: "/groups",
    label: "Groups",
    search: params.topic ? "" : "Search groups or topics",
    sort: "topic",
    params,
    key: (g) => `${g.topic}\n${g.name}`,
    columns: [
      { label: "Group", sort: "name", class: "name", cell: (g) => [g.name, groupNotes(g)] },
      { label: "Topic", sort: "topic", class: "wrap wide", cell: (g) => [topicLink(g.topic), marks(g.marks)] },
      { label: "Lag over 5 min", class: "wide", cell: (g) => spark(g.lag_history, "warn", `lag over five minutes, now ${g.lag}`) },
      { label: "Lag", sort: "lag", class: n, cell: (g) => count(g.lag) },
      { label: "Remaining", class: n, cell: (g) => count(g.remaining) },
      { label: "In flight", sort: "in_flight", class: n, cell: (g) => count(g.in_flight) },
      { label: "Redelivered", sort: "redelivered", class: n, cell: (g) => count(g.redelivered) },
      { label: "Dead", sort: "dead", class: n, cell: (g) => count(g.dead) },
      { label: "Members", sort: "members", class: n, cell: (g) => count(g.members.length) },
      ...(admin ? [{ label: "", class: "acts", cell: (g) => act("reset", `Reset group ${g.name} on ${g.topic}`, "Reset", () => resetGroup(g, () => table.refresh())) }] : []),
    ],
    empty: () => empty("No groups yet", "A group remembers how far its members have read. Consuming under a new name declares it; in Python:", 'bus.consume("orders/eu", "billing")'),
  });
  return table;
}

function groupNotes(g) {
  const notes = [];
  if (g.paused) notes.push("paused");
  if (g.exclusive) notes.push("exclusive");
  if (g.filter) notes.push(`filter ${g.filter}`);
  if (g.problem) notes.push(g.problem);
  const names = g.members.slice(0, NAMED).map((m) => m.peer);
  if (g.members.length > NAMED) names.push(`${g.members.length - NAMED} more`);
  if (names.length) notes.push(`read by ${names.join(", ")}`);
  return notes.length ? h("span", { class: "sub" }, notes.join(", ")) : null;
}

export function services(place, admin) {
  const table = new Table({
    path: "/services",
    label: "Services",
    search: "Search services",
    sort: "name",
    filters: [{ name: "protocol", label: "Protocol", all: "all protocols", values: PROTOCOLS.slice(0, 5) }],
    key: (v) => `${v.protocol}\n${v.name}`,
    columns: [
      { label: "Service", sort: "name", class: "name", cell: (v) => [v.name, v.prefix ? h("span", { class: "sub" }, "and all names below it") : null] },
      { label: "Protocol", sort: "protocol", cell: (v) => wire(v.protocol) },
      { label: "Owner", class: "wrap wide", cell: (v) => [v.owner, h("span", { class: "sub" }, v.identity)] },
      { label: "Rate", sort: "rate", class: n, cell: (v) => rate(v.rate) },
      { label: "Calls", sort: "calls", class: n, cell: (v) => count(v.calls) },
      { label: "Failures", sort: "failures", class: n, cell: (v) => count(v.failures) },
      { label: "In flight", sort: "in_flight", class: n, cell: (v) => count(v.in_flight) },
      { label: "p50", class: n, cell: (v) => ms(v.p50_ms) },
      { label: "p99", sort: "p99_ms", class: n, cell: (v) => ms(v.p99_ms) },
      ...(admin ? [{ label: "", class: "acts", cell: (v) => (v.shared ? act("call", `Call ${v.name}`, "Call", () => call(v)) : h("span", { class: "muted small" }, "own wire only")) }] : []),
    ],
    empty: () => empty("No services yet", "A service answers calls to a name, on whichever wire it speaks:", "polybus reply calc/add 42"),
  });
  return list(place, "Services", "Names that somebody answers; every protocol can call them.", table);
}

export function connections(place, admin) {
  const table = new Table({
    path: "/connections",
    label: "Connections",
    search: "Search address or identity",
    sort: "id",
    filters: [{ name: "protocol", label: "Protocol", all: "all protocols", values: PROTOCOLS }],
    key: (c) => c.id,
    columns: [
      { label: "Peer", sort: "peer", class: "name", cell: (c) => [c.peer, h("span", { class: "sub" }, `#${c.id}, ${c.transport}`)] },
      { label: "Protocol", sort: "protocol", cell: (c) => wire(c.protocol) },
      { label: "Identity", sort: "identity", class: "wrap wide", cell: (c) => c.identity || "–" },
      { label: "Age", sort: "age_s", class: n, cell: (c) => seconds(c.age_s) },
      { label: "Pending", sort: "pending_bytes", class: n, cell: (c) => [bytes(c.pending_bytes), c.congested ? h("span", { class: "badge warn" }, "slow") : null] },
      { label: "In", sort: "in", class: n, cell: (c) => count(c.messages_in) },
      { label: "Out", sort: "out", class: n, cell: (c) => count(c.messages_out) },
      { label: "Services", class: n, cell: (c) => count(c.services) },
      ...(admin ? [{ label: "", class: "acts", cell: (c) => act("close", `Disconnect ${c.peer}`, "Disconnect", () => disconnect(c, () => table.refresh())) }] : []),
    ],
    empty: () => empty("Nobody is connected", "Not even this page, it seems.", ""),
  });
  return list(place, "Connections", "Everybody on this node, whatever they speak.", table);
}

export function dead(place) {
  const table = new Table({
    path: "/dead-letters",
    label: "Dead letters",
    search: "Search topics",
    key: (d) => d.topic,
    columns: [
      { label: "Topic", class: "name", cell: (d) => topicLink(d.topic) },
      { label: "Records", class: n, cell: (d) => count(d.records) },
      { label: "Size", class: n, cell: (d) => bytes(d.bytes) },
      { label: "Newest", class: n, cell: (d) => (d.records ? ago(d.newest_ms) : "–") },
      { label: "Given up by", class: "wrap wide", cell: (d) => d.sources.join(", ") || "–" },
    ],
    empty: () => empty("No dead letters", "A record that no member confirms within its attempts is put aside here, with the cause in its headers.", ""),
  });
  return list(place, "Dead letters", "Records that were given up, kept with the cause.", table);
}

export function federation(place) {
  const servers = h("div");
  const twins = h("div");
  place.replaceChildren(
    head("Trackers and twins", "Other buses that this one works with, over their own wires."),
    card("Zbus servers and trackers", "", servers),
    card("RMB twins", "", twins),
  );
  const plain = (label, heads, rows) =>
    scrolling(
      label,
      h("table", { class: "cards" }, h("thead", null, h("tr", null, heads.map(([t, k]) => h("th", { class: k === n ? n : null, scope: "col" }, t)))), h("tbody", null, rows.map((cells) => h("tr", null, cells.map((c, i) => h("td", { class: heads[i][1] || null, "data-label": heads[i][0] }, h("div", null, c))))))),
    );
  const refresh = async () => {
    const found = await get("/federation");
    servers.replaceChildren(
      found.trackers.length
        ? plain("Zbus servers", [["Address", "name"], ["Role", ""], ["TLS", ""], ["Version", ""], ["Topics", n]], found.trackers.map((t) => [t.address, t.role, t.ssl ? "yes" : "no", t.version || "–", count(t.topics)]))
        : empty("No Zbus here", "A node without a data folder serves no Zbus topics.", "polybus serve --data ./polybus-data"),
    );
    twins.replaceChildren(
      found.twins.length
        ? plain("RMB twins", [["Twin", "name"], ["Address", "wrap wide"]], found.twins.map((t) => [h("span", { class: "row" }, String(t.id), t.own ? h("span", { class: "badge good" }, "this node") : null), t.address || "–"]))
        : empty("This node is no twin", "Give it a number, a key and a directory to exchange signed messages with other twins.", "polybus serve --twin 12 --key-file seed --twins twins.json"),
    );
  };
  refresh().catch(() => {});
  return () => refresh().catch(() => {});
}

export function counts() {
  return latest ? { topics: latest.topics, groups: latest.groups, services: latest.services, connections: latest.connections, dead: latest.dead } : {};
}
