// One topic: its records by offset, time or tag, the live tail, and its groups.

import { get, part, query } from "./api.js";
import { emptyTopic, payloadBlock, produce, removeTopic } from "./dialogs.js";
import { empty, field, h } from "./dom.js";
import { ago, bytes, count, moment, rate, seconds } from "./format.js";
import { groupTable } from "./views.js";

const LIMIT = 50;
const TAIL = 200; // records kept on the page

function recordNode(topic, record) {
  const body = h("div", { class: "record-body" });
  const text = record.format === "base64" ? `${bytes(record.size)} of binary data` : record.payload.replace(/\s+/g, " ");
  const notes = [record.tag && `tag ${record.tag}`, record.key && `key ${record.key}`].filter(Boolean).join(", ");
  const node = h(
    "details",
    { class: "record" },
    h(
      "summary",
      null,
      h("span", { class: "offset" }, String(record.offset)),
      h("span", { class: "when muted num" }, moment(record.time_ms)),
      h("span", { class: "preview" }, notes ? h("span", { class: "muted" }, `[${notes}] `) : null, text.slice(0, 300) || "(empty)"),
      h("span", { class: "size num" }, bytes(record.size)),
    ),
    body,
  );
  node.addEventListener("toggle", async () => {
    if (!node.open || body.childElementCount) return;
    show(body, record);
    if (!record.truncated) return;
    try {
      show(body, await get(`/topics/${part(topic)}/records/${record.offset}`));
    } catch (problem) {
      body.append(h("p", { class: "problem" }, problem.message));
    }
  });
  return node;
}

function show(body, record) {
  const facts = [["Time", `${moment(record.time_ms)} (${record.time_ms})`], ["Size", bytes(record.size)]];
  if (record.tag) facts.push(["Tag", record.tag]);
  if (record.key) facts.push(["Key", record.key]);
  if (record.id) facts.push(["Id", record.id]);
  for (const [name, value] of Object.entries(record.headers)) facts.push([name, value]);
  body.replaceChildren(h("dl", { class: "pairs small" }, facts.map(([k, v]) => [h("dt", null, k), h("dd", null, v)])), payloadBlock(record));
}

function browser(topic, admin) {
  const offset = h("input", { type: "number", min: "0", placeholder: "newest" });
  const time = h("input", { type: "datetime-local", step: "1" });
  const tag = h("input", { placeholder: "orders.*", autocomplete: "off", spellcheck: "false" });
  const trouble = h("p", { class: "problem", role: "alert", hidden: true });
  const text = h("span", { class: "muted small", "aria-live": "polite" });
  const records = h("div", { class: "records" });
  let shown = null;

  // The newest come first as long as nobody asks for a beginning.
  async function load(where, newestFirst = false) {
    trouble.hidden = true;
    try {
      shown = await get(`/topics/${part(topic)}/records`, { limit: LIMIT, tag: tag.value.trim(), ...where });
    } catch (problem) {
      trouble.textContent = problem.message;
      trouble.hidden = false;
      return;
    }
    const { items, first, end, scanned } = shown;
    const nodes = items.map((record) => recordNode(topic, record));
    records.replaceChildren(...(newestFirst ? nodes.reverse() : nodes));
    if (!items.length) {
      records.replaceChildren(
        end > first
          ? empty("Nothing here", "No record from there on passes the filter, or the end is reached.")
          : empty("No records yet", "What is produced to this topic shows up here.", `echo hello | polybus pub ${topic} --topic`),
      );
    }
    const range = items.length ? `offsets ${items[0].offset}–${items[items.length - 1].offset}, ` : "";
    text.textContent = `${newestFirst && items.length ? "newest first, " : ""}${range}topic holds ${first}–${Math.max(first, end - 1)}${tag.value ? `, ${count(scanned)} looked at` : ""}`;
  }

  const go = () => {
    const when = time.value ? new Date(time.value).getTime() : "";
    return offset.value === "" && !when ? load({}, true) : load(offset.value !== "" ? { offset: offset.value } : { time_ms: when });
  };
  const form = h(
    "form",
    {
      class: "toolbar",
      onsubmit: (event) => {
        event.preventDefault();
        go();
      },
    },
    field("From offset", offset),
    h("label", { class: "field time" }, "or from time", time),
    field("Tag filter", tag),
    h("button", { class: "primary", type: "submit" }, "Show"),
  );
  const jump = (where, newestFirst) => () => {
    offset.value = "";
    time.value = "";
    load(where(), newestFirst);
  };
  const before = () => ({ offset: Math.max(0, (shown?.items[0]?.offset ?? shown?.end ?? 0) - LIMIT) });
  const bar = h(
    "div",
    { class: "pager" },
    text,
    h(
      "span",
      { class: "row jumps" },
      h("button", { class: "small", type: "button", onclick: jump(() => ({ offset: 0 })) }, "Oldest"),
      h("button", { class: "small", type: "button", onclick: jump(before, true) }, "Earlier"),
      h("button", { class: "small", type: "button", onclick: jump(() => ({ offset: shown?.next ?? 0 })) }, "Later"),
      h("button", { class: "small", type: "button", onclick: jump(() => ({}), true) }, "Newest"),
    ),
  );
  load({}, true);
  return { node: h("section", { class: "card" }, form, trouble, bar, records), load: () => load({}, true), stop() {}, refresh() {} };
}

function tail(topic) {
  const tag = h("input", { placeholder: "orders.*", autocomplete: "off", spellcheck: "false" });
  const contains = h("input", { placeholder: "text in the payload", autocomplete: "off", spellcheck: "false" });
  const trouble = h("p", { class: "problem", role: "alert", hidden: true });
  const text = h("span", { class: "muted small", "aria-live": "polite" }, "Waiting for records…");
  const records = h("div", { class: "records" });
  const pause = h("button", { class: "small", type: "button", "aria-pressed": "false", onclick: () => toggle() }, "Pause");
  let source = null;
  let paused = false;
  let seen = 0;
  let skipped = 0;

  function toggle() {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Go on" : "Pause";
  }

  async function start() {
    stop();
    trouble.hidden = true;
    records.replaceChildren();
    seen = skipped = 0;
    text.textContent = "Waiting for records…";
    // A stream cannot say what is wrong with its filter, so that is asked first.
    try {
      await get(`/topics/${part(topic)}/records`, { limit: 1, tag: tag.value.trim() });
    } catch (problem) {
      trouble.textContent = problem.message;
      trouble.hidden = false;
      return;
    }
    source = new EventSource(`/api/v1/topics/${part(topic)}/tail${query({ tag: tag.value.trim(), q: contains.value })}`);
    source.addEventListener("records", (event) => {
      const found = JSON.parse(event.data);
      seen += found.items.length;
      skipped += found.skipped;
      text.textContent = `${count(seen)} records${skipped ? `, ${count(skipped)} passed over: they come faster than they can be read` : ""}`;
      if (paused) return;
      records.prepend(...found.items.reverse().map((record) => recordNode(topic, record)));
      while (records.childElementCount > TAIL) records.lastElementChild.remove();
    });
    source.addEventListener("gone", (event) => {
      trouble.textContent = JSON.parse(event.data);
      trouble.hidden = false;
      stop();
    });
  }

  function stop() {
    source?.close();
    source = null;
  }

  const form = h(
    "form",
    {
      class: "toolbar",
      onsubmit: (event) => {
        event.preventDefault();
        start();
      },
    },
    field("Tag filter", tag),
    field("Contains", contains),
    h("button", { class: "primary", type: "submit" }, "Filter"),
  );
  start();
  return { node: h("section", { class: "card" }, form, trouble, h("div", { class: "pager" }, text, pause), records), stop, refresh() {} };
}

function groupsOf(topic, admin) {
  const table = groupTable(admin, { topic });
  table.refresh();
  return { node: table.node, stop() {}, refresh: () => table.refresh() };
}

function kept({ retain_ms, retain_bytes }) {
  const limits = [retain_ms && seconds(retain_ms / 1000), retain_bytes && bytes(retain_bytes)].filter(Boolean);
  return limits.length ? `kept for ${limits.join(" or ")}` : "kept for ever";
}

export function topic(place, admin, name) {
  const facts = h("div", { class: "tiles" });
  const trouble = h("p", { class: "problem", role: "alert", hidden: true });
  const panel = h("div");
  let current = null;
  let left = false;
  const makers = { Records: browser, "Live tail": tail, Groups: groupsOf };
  const tabs = Object.keys(makers).map((label) => h("button", { type: "button", onclick: () => choose(label) }, label));

  function choose(label) {
    current?.stop();
    current = makers[label](name, admin);
    panel.replaceChildren(current.node);
    for (const tab of tabs) tab.setAttribute("aria-pressed", String(tab.textContent === label));
  }

  async function refresh() {
    let found;
    try {
      found = await get(`/topics/${part(name)}`);
    } catch (problem) {
      if (left) return;
      if (problem.status === 404) return missing();
      trouble.textContent = problem.message;
      trouble.hidden = false;
      return;
    }
    if (left) return;
    if (!current) lay();
    trouble.hidden = true;
    const tile = (label, value, note) => h("div", { class: "tile" }, h("div", { class: "label" }, label), h("div", { class: "value" }, value), h("div", { class: "note" }, note));
    facts.replaceChildren(
      tile("Records", count(found.records), found.records ? `offsets ${found.first}–${found.end - 1}` : `next offset ${found.end}`),
      tile("Size", bytes(found.bytes), `durability ${found.durability}`),
      tile("Oldest", found.records ? seconds(Math.max(0, Date.now() - found.oldest_ms) / 1000) : "–", kept(found)),
      tile("Rate", rate(found.rate), found.records ? `newest ${ago(found.newest_ms)}` : "nothing yet"),
      tile("Groups", count(found.groups), `${count(found.consumers)} consumers`),
    );
    current?.refresh();
  }

  const actions = admin
    ? [
        h("button", { class: "primary", type: "button", onclick: () => produce(name, () => current?.load?.()) }, "Produce"),
        h("button", { class: "danger", type: "button", onclick: () => emptyTopic(name, () => choose("Records")) }, "Empty"),
        h("button", { class: "danger", type: "button", onclick: () => removeTopic(name, () => (location.hash = "#/topics")) }, "Remove"),
      ]
    : [];
  const headed = (...buttons) =>
    h("div", { class: "head" }, h("div", { class: "head-text" }, h("a", { class: "crumb", href: "#/topics" }, "Topics"), h("h1", null, name)), h("div", { class: "row" }, buttons));

  function lay() {
    place.replaceChildren(headed(...actions), trouble, facts, h("div", { class: "tabs", role: "group", "aria-label": "Parts of the topic" }, tabs), panel);
    choose("Records");
  }

  // Looked for again with every refresh: it may be added while the page is open.
  function missing() {
    current?.stop();
    current = null;
    place.replaceChildren(headed(), h("section", { class: "card" }, empty("There is no such topic", "It was removed, or never added. To add it:", `polybus topic add ${name}`)));
  }

  place.replaceChildren(headed());
  refresh();
  return {
    refresh,
    stop() {
      left = true;
      current?.stop();
    },
  };
}
