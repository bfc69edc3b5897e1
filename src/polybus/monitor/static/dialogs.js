// Questions to the person at the page, as native dialogs: the keyboard and Escape work by themselves.

import { del, get, keepToken, part, post } from "./api.js";
import { field, h, toast } from "./dom.js";
import { bytes, hexdump, ms } from "./format.js";

// Opens a form; `send` does the work and its result closes the dialog, unless it returns false.
function ask(title, intro, fields, { action, danger, send, extra }) {
  const trouble = h("p", { class: "problem", role: "alert", hidden: true });
  const submit = h("button", { class: danger ? "primary danger" : "primary", type: "submit" }, action);
  const heading = `dialog-${Math.random().toString(36).slice(2)}`;
  const dialog = h(
    "dialog",
    { "aria-labelledby": heading },
    h(
      "form",
      {
        onsubmit: async (event) => {
          event.preventDefault();
          submit.disabled = true;
          trouble.hidden = true;
          try {
            if ((await send()) !== false) dialog.close();
          } catch (problem) {
            trouble.textContent = [problem.message, problem.hint].filter(Boolean).join(" ");
            trouble.hidden = false;
          }
          submit.disabled = false;
        },
      },
      h("h2", { id: heading }, title),
      intro ? h("p", { class: "muted" }, intro) : null,
      fields,
      trouble,
      extra ?? null,
      h("div", { class: "actions" }, h("button", { type: "button", onclick: () => dialog.close() }, extra ? "Close" : "Cancel"), submit),
    ),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return { dialog, submit };
}

function headersOf(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const at = line.indexOf(":");
    if (at > 0) found[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return found;
}

const encodings = () => h("select", null, h("option", { value: "text" }, "text or JSON"), h("option", { value: "base64" }, "bytes as base64"));
const headerLines = () => h("textarea", { rows: "2", placeholder: "name: value", spellcheck: "false" });

export function produce(topic, then) {
  const payload = h("textarea", { required: true, rows: "7", spellcheck: "false", placeholder: '{"hello": "world"}' });
  const encoding = encodings();
  const tag = h("input", { autocomplete: "off" });
  const key = h("input", { autocomplete: "off" });
  const headers = headerLines();
  ask(
    `Produce to ${topic}`,
    "One record, acknowledged once it is on disk.",
    [
      field("Payload", payload),
      h("div", { class: "two" }, field("Payload is", encoding), field("Tag", tag), field("Key", key)),
      field("Headers, one per line", headers),
    ],
    {
      action: "Produce",
      send: async () => {
        const body = { payload: payload.value, encoding: encoding.value, tag: tag.value, key: key.value, headers: headersOf(headers.value) };
        const done = await post(`/topics/${part(topic)}/records`, body);
        toast(`Stored at offset ${done.offset} of ${done.topic}`);
        then?.();
      },
    },
  );
}

export function addTopic(then) {
  const name = h("input", { required: true, autocomplete: "off", placeholder: "orders/eu", maxlength: "255" });
  const durability = h("select", null, h("option", { value: "sync" }, "sync: on disk before it is acknowledged"), h("option", { value: "os" }, "os: faster, a power cut may cost the last second"));
  const days = h("input", { type: "number", min: "0", value: "0" });
  ask("Add a topic", "", [field("Name", name), field("Durability", durability), field("Keep records for so many days (0: for ever)", days)], {
    action: "Add topic",
    send: async () => {
      const done = await post("/topics", { name: name.value, durability: durability.value, retain_ms: Math.round(Number(days.value) * 86400000) });
      toast(done.done);
      then?.();
    },
  });
}

// A change that cannot be taken back asks for the name to be typed.
function confirmByName(title, intro, name, action, send) {
  const typed = h("input", { autocomplete: "off", spellcheck: "false" });
  const { submit } = ask(title, intro, [field(`Type ${name} to confirm`, typed)], { action, danger: true, send });
  submit.disabled = true;
  typed.addEventListener("input", () => {
    submit.disabled = typed.value !== name;
  });
}

export function removeTopic(topic, then) {
  confirmByName("Remove this topic", "All its records and groups go with it, for good.", topic, "Remove topic", async () => {
    toast((await del(`/topics/${part(topic)}`)).done);
    then?.();
  });
}

export function emptyTopic(topic, then) {
  confirmByName("Empty this topic", "All its records go, for good. Groups stay and go on with what comes next.", topic, "Empty topic", async () => {
    toast((await post(`/topics/${part(topic)}/empty`)).done);
    then?.();
  });
}

export function resetGroup({ topic, name }, then) {
  const to = h(
    "select",
    null,
    h("option", { value: "beginning" }, "the beginning: everything again"),
    h("option", { value: "end" }, "the end: skip what is waiting"),
    h("option", { value: "offset" }, "an offset"),
    h("option", { value: "time" }, "a time"),
  );
  const offset = h("input", { type: "number", min: "0", value: "0" });
  const time = h("input", { type: "datetime-local", step: "1" });
  const offsetField = field("Offset", offset);
  const timeField = field("Time", time);
  const adapt = () => {
    offsetField.hidden = to.value !== "offset";
    timeField.hidden = to.value !== "time";
    time.required = to.value === "time";
  };
  to.addEventListener("change", adapt);
  adapt();
  ask(`Reset ${name}`, `The group on ${topic} goes on from another position, and what its members hold now is forgotten: they may get records again, or never.`, [field("Go on from", to), offsetField, timeField], {
    action: "Reset group",
    danger: true,
    send: async () => {
      const body = { to: to.value, offset: Number(offset.value) || 0, time_ms: time.value ? new Date(time.value).getTime() : 0 };
      toast((await post(`/topics/${part(topic)}/groups/${part(name)}/reset`, body)).done);
      then?.();
    },
  });
}

export function disconnect({ id, peer, protocol }, then) {
  ask("Disconnect this client", `Connection ${id}, ${protocol} from ${peer}. What is queued for it still goes out; a client that reconnects by itself will be back.`, [], {
    action: "Disconnect",
    danger: true,
    send: async () => {
      toast((await del(`/connections/${id}`)).done);
      then?.();
    },
  });
}

export function signIn() {
  const token = h("input", { type: "password", required: true, autocomplete: "current-password", pattern: "[^\\s;,]+" });
  const owner = h("input", { type: "text", autocomplete: "username", value: "polybus", hidden: true }); // for those that keep passwords
  ask("Sign in", "With a token that the node's configuration names.", [owner, field("Token", token)], {
    action: "Sign in",
    send: async () => {
      keepToken(token.value);
      try {
        await get("/me");
      } catch (problem) {
        keepToken("");
        throw problem;
      }
      location.reload();
    },
  });
}

// A service may own all names below its own; then there is a name to complete.
export function call({ name, shared, prefix }) {
  const target = h("input", { required: true, value: `${shared}/`, autocomplete: "off", spellcheck: "false" });
  const payload = h("textarea", { rows: "6", spellcheck: "false" });
  const encoding = encodings();
  const timeout = h("input", { type: "number", min: "1", max: "60", value: "10" });
  const headers = headerLines();
  const result = h("div", { class: "stack", "aria-live": "polite" });
  ask(
    `Call ${name}`,
    prefix ? "It answers its own name and all names below it." : "",
    [prefix ? field("Name", target) : null, field("Payload", payload), h("div", { class: "two" }, field("Payload is", encoding), field("Seconds to wait", timeout)), field("Headers, one per line", headers)],
    {
      action: "Call",
      extra: result,
      send: async () => {
        const answer = await post("/call", { name: prefix ? target.value.trim().replace(/\/+$/, "") : shared, payload: payload.value, encoding: encoding.value, headers: headersOf(headers.value), timeout_s: Number(timeout.value) || 10 });
        const good = answer.status === "OK";
        const status = h("p", { class: "row" }, h("span", { class: good ? "badge good" : "badge bad" }, answer.status), h("span", { class: "muted" }, `${ms(answer.took_ms)}, ${bytes(answer.size)}`));
        result.replaceChildren(status, payloadBlock(answer));
        return false;
      },
    },
  );
}

export function payloadBlock({ format, payload, truncated, size }) {
  const text = format === "base64" ? hexdump(payload) : payload;
  return h(
    "div",
    null,
    h("pre", { class: format === "base64" ? "payload hex" : "payload", tabindex: "0" }, text || "(empty)"),
    truncated ? h("p", { class: "muted small" }, `Only the beginning of ${bytes(size)} is shown.`) : null,
  );
}
