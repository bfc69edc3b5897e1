// Builds nodes. Text only ever goes in as text: there is no way here to make HTML out of a string.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "class") node.setAttribute("class", value);
    else if (key in node && typeof value !== "string" && !(node instanceof SVGElement)) node[key] = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function s(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

export function toast(text) {
  const note = h("div", { class: "toast" }, text);
  document.getElementById("toasts").append(note);
  setTimeout(() => note.remove(), 5000);
}

export function head(title, sub, ...actions) {
  return h(
    "div",
    { class: "head" },
    h("div", { class: "head-text" }, h("h1", null, title), sub ? h("p", { class: "muted" }, sub) : null),
    actions.length ? h("div", { class: "row" }, actions) : null,
  );
}

export function card(title, note, ...children) {
  return h(
    "section",
    { class: "card" },
    title ? h("header", null, h("h2", null, title), note ? h("span", { class: "muted small" }, note) : null) : null,
    children,
  );
}

export function empty(title, text, command) {
  return h(
    "div",
    { class: "empty" },
    h("strong", null, title),
    h("span", null, text),
    command ? h("code", null, command) : null,
  );
}

// The colour of a protocol.
export function known(name) {
  return ["native", "gsb", "t2", "zbus", "rmb", "monitor"].includes(name) ? name : "http";
}

export function wire(name) {
  return h("span", { class: "wire" }, h("span", { class: `dot ${known(name)}` }), name);
}

// A table that may be wider than its card.
export function scrolling(label, table) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table);
}

export function field(label, control) {
  return h("label", { class: "field" }, label, control);
}
