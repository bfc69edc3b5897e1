// The frame: which view is shown, the menu, the theme, and the pulse that keeps lists fresh.

import { connect, get, keepToken, listen } from "./api.js";
import { signIn } from "./dialogs.js";
import { empty, h } from "./dom.js";
import { count } from "./format.js";
import { history } from "./history.js";
import { overview } from "./overview.js";
import { topic } from "./topic.js";
import { connections, counts, dead, federation, groups, services, topics } from "./views.js";

const VIEWS = [
  ["overview", "Overview"],
  ["topics", "Topics"],
  ["groups", "Groups"],
  ["services", "Services"],
  ["connections", "Connections"],
  ["federation", "Trackers and twins"],
  ["dead", "Dead letters"],
  ["history", "History"],
];
const LISTS = { topics, groups, services, connections, federation, dead, history };
const EVERY = 2; // pulses between two refreshes of a list

const main = document.getElementById("main");
const side = document.querySelector(".side");
const nav = document.getElementById("nav");
const menu = document.getElementById("menu");
const banner = h("p", { class: "banner bad", role: "alert", hidden: true }, "The node cannot be reached. Trying again…");
const place = h("div", { class: "view" });
let me = { identity: "", look: false, admin: false, token: false };
let shown = { refresh() {}, stop() {} };
let pulses = 0;

const links = VIEWS.map(([id, label]) => {
  const number = h("span", { class: "count" });
  const link = h("a", { href: `#/${id}` }, label, number);
  nav.append(link);
  return { id, link, number };
});

// What somebody typed behind the # need not be well formed.
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function show() {
  const [, view = "overview", ...rest] = location.hash.split("/");
  const name = decoded(rest.join("/"));
  const label = VIEWS.find(([id]) => id === view)?.[1] ?? "Overview";
  shown.stop();
  if (view === "topics" && name) shown = topic(place, me.admin, name);
  else if (LISTS[view]) shown = { refresh: LISTS[view](place, me.admin), stop() {} };
  else shown = { refresh() {}, stop: overview(place) };
  document.title = `${name || label} · polybus`;
  for (const { id, link } of links) {
    if (id === (LISTS[view] ? view : "overview")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  open(false);
  window.scrollTo(0, 0);
}

function open(wide) {
  side.classList.toggle("open", wide);
  menu.setAttribute("aria-expanded", String(wide));
}

function pulse(now) {
  banner.hidden = now !== null;
  if (!now) return;
  document.getElementById("node").textContent = now.addresses[0] ?? "";
  const numbers = counts();
  for (const { id, number } of links) number.textContent = numbers[id] ? count(numbers[id]) : "";
  pulses += 1;
  if (pulses % EVERY === 0 && !document.hidden) shown.refresh();
}

function theme(choice) {
  if (choice === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
  localStorage.setItem("theme", choice);
  document.getElementById("theme").textContent = `Theme: ${choice}`;
}

document.getElementById("theme").addEventListener("click", () => {
  const order = ["system", "light", "dark"];
  theme(order[(order.indexOf(localStorage.getItem("theme") ?? "system") + 1) % 3]);
});
menu.addEventListener("click", () => open(!side.classList.contains("open")));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

theme(localStorage.getItem("theme") ?? "system");
main.replaceChildren(banner, place);
async function whoAmI() {
  try {
    return await get("/me");
  } catch (problem) {
    if (problem.status !== 401) throw problem;
    keepToken(""); // it does not count any more
    return get("/me");
  }
}

function introduce() {
  const rights = !me.look ? ": may not look" : me.admin ? "" : ": read only";
  document.getElementById("who").textContent = `You are ${me.identity}${rights}`;
  const sign = document.getElementById("sign");
  const leaving = me.identity.startsWith("token:");
  sign.hidden = !me.token && !leaving;
  sign.textContent = leaving ? "Sign out" : "Sign in";
  sign.addEventListener("click", () => {
    if (!leaving) return signIn();
    keepToken("");
    return location.reload();
  });
}

function refuse() {
  const way = me.token ? h("button", { class: "primary", type: "button", onclick: signIn }, "Sign in with a token") : null;
  const text = `You are ${me.identity}, and the node's policy lets you see nothing of it.`;
  place.replaceChildren(h("h1", null, "Not for everybody"), h("section", { class: "card" }, empty("You may not look at this node", text), h("div", { class: "empty" }, way)));
  nav.hidden = true;
}

try {
  me = await whoAmI();
  introduce();
} catch (problem) {
  banner.textContent = problem.message;
  banner.hidden = false;
}
if (me.look) {
  window.addEventListener("hashchange", () => {
    show();
    main.focus({ preventScroll: true });
  });
  show();
  listen(pulse);
  connect();
} else if (me.identity) refuse();
