// A list that the server sorts, filters and pages; refreshed in place, so that what has the focus keeps it.

import { get } from "./api.js";
import { h, scrolling } from "./dom.js";
import { exact } from "./format.js";

const LIMIT = 50;

// columns: {label, sort?, cell(row), class?}; options: {path, key(row), columns, empty, search, params, filters, state}
export class Table {
  constructor(options) {
    this.options = options;
    this.state = { sort: options.sort ?? "", order: options.order ?? "asc", page: 1, q: "", ...options.params };
    this.rows = new Map();
    this.body = h("tbody");
    this.heads = options.columns.map((column) => this.makeHead(column));
    this.table = h("table", { class: "cards" }, h("thead", null, h("tr", null, this.heads)), this.body);
    this.scroll = scrolling(options.label, this.table);
    this.nothing = h("div");
    this.trouble = h("p", { class: "problem", role: "alert", hidden: true });
    this.text = h("span", { "aria-live": "polite" });
    this.back = h("button", { class: "small", type: "button", onclick: () => this.turn(-1) }, "Previous");
    this.next = h("button", { class: "small", type: "button", onclick: () => this.turn(1) }, "Next");
    this.pager = h("div", { class: "pager" }, this.text, h("span", { class: "row" }, this.back, this.next));
    this.node = h("section", { class: "card" }, this.toolbar(), this.trouble, this.pager, this.scroll, this.nothing);
    this.asked = 0;
  }

  toolbar() {
    const { search, filters = [] } = this.options;
    if (!search && !filters.length) return null;
    let timer;
    const input = h("input", {
      type: "search",
      placeholder: search,
      "aria-label": search,
      oninput: () => {
        clearTimeout(timer);
        timer = setTimeout(() => this.set({ q: input.value, page: 1 }), 200);
      },
    });
    return h("div", { class: "toolbar" }, search ? h("div", { class: "grow" }, input) : null, filters.map((f) => this.choice(f)));
  }

  choice({ name, label, all, values }) {
    const select = h(
      "select",
      { "aria-label": label, onchange: () => this.set({ [name]: select.value, page: 1 }) },
      h("option", { value: "" }, all),
      values.map((value) => h("option", { value }, value)),
    );
    return h("div", { class: "choice" }, select);
  }

  makeHead(column) {
    const cell = h("th", { class: column.class?.includes("n") && !column.class.includes("name") ? "n" : null, scope: "col" });
    if (!column.sort) {
      cell.append(column.label);
      return cell;
    }
    cell.append(h("button", { type: "button", onclick: () => this.sortBy(column) }, column.label));
    cell.dataset.sort = column.sort;
    return cell;
  }

  sortBy({ sort, class: kind }) {
    const same = this.state.sort === sort;
    const first = kind?.split(" ").includes("n") ? "desc" : "asc";
    const order = same ? (this.state.order === "asc" ? "desc" : "asc") : first;
    this.set({ sort, order, page: 1 });
  }

  set(change) {
    Object.assign(this.state, change);
    return this.refresh();
  }

  turn(step) {
    return this.set({ page: this.state.page + step });
  }

  async refresh() {
    const mine = ++this.asked;
    let answer;
    try {
      answer = await get(this.options.path, { ...this.state, limit: LIMIT });
    } catch (problem) {
      if (mine !== this.asked) return;
      this.trouble.textContent = problem.message;
      this.trouble.hidden = false;
      return;
    }
    if (mine !== this.asked) return; // a later question was asked meanwhile
    this.trouble.hidden = true;
    this.show(answer);
  }

  show({ items, total, matching, page, limit }) {
    const pages = Math.max(1, Math.ceil(matching / limit));
    if (page > pages) {
      this.set({ page: pages });
      return;
    }
    const focused = document.activeElement;
    const held = this.body.contains(focused) ? [focused.closest("tr").dataset.key, focused.dataset.act] : null;
    const fresh = new Map();
    for (const row of items) {
      const key = String(this.options.key(row));
      const text = JSON.stringify(row);
      const kept = this.rows.get(key) ?? { text, row, node: this.makeRow(key, row) };
      if (kept.text !== text) this.renew(kept, text, row);
      fresh.set(key, kept);
    }
    const nodes = [...fresh.values()].map((each) => each.node);
    const same = nodes.length === this.body.children.length && nodes.every((n, i) => n === this.body.children[i]);
    if (!same) this.body.replaceChildren(...nodes);
    this.rows = fresh;
    if (held && !this.body.contains(document.activeElement)) {
      const row = fresh.get(held[0])?.node;
      (row?.querySelector(`[data-act="${held[1]}"]`) ?? row?.querySelector("a, button"))?.focus();
    }
    this.scroll.hidden = !items.length;
    this.pager.hidden = !total;
    this.nothing.replaceChildren(...(items.length ? [] : [this.emptyText(total)]));
    const from = matching ? (page - 1) * limit + 1 : 0;
    const of = matching === total ? exact(total) : `${exact(matching)} matching of ${exact(total)}`;
    this.text.textContent = `${exact(from)}–${exact(from + items.length - (items.length ? 1 : 0))} of ${of}`;
    this.back.disabled = page <= 1;
    this.next.disabled = page >= pages;
    this.back.parentNode.hidden = pages <= 1;
    for (const cell of this.heads) {
      const mine = cell.dataset.sort && cell.dataset.sort === this.state.sort;
      if (mine) cell.setAttribute("aria-sort", this.state.order === "asc" ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
      const button = cell.querySelector("button");
      if (button) button.textContent = button.textContent.replace(/ [▲▼]$/, "") + (mine ? (this.state.order === "asc" ? " ▲" : " ▼") : "");
    }
  }

  emptyText(total) {
    if (!total) return this.options.empty();
    return h("div", { class: "empty" }, h("strong", null, "Nothing matches"), h("span", null, "Change the search or the filter above."));
  }

  // Only the cells that changed: a button that is replaced while it is pressed is never clicked.
  renew(kept, text, row) {
    kept.text = text;
    Object.assign(kept.row, row); // what its buttons do, they do to the row as it is now
    const cells = [...this.makeRow(kept.node.dataset.key, kept.row).cells];
    [...kept.node.cells].forEach((cell, i) => {
      if (!cell.isEqualNode(cells[i])) cell.replaceWith(cells[i]);
    });
  }

  makeRow(key, row) {
    const row_ = h("tr", { "data-key": key });
    for (const column of this.options.columns) {
      const content = column.cell(row);
      row_.append(h("td", { class: column.class ?? null, "data-label": column.label }, h("div", null, content)));
    }
    return row_;
  }
}
