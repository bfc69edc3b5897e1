// Numbers and times for people.

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

// All digits, for sizes of lists and places in them.
export const exact = (n) => plain.format(n);

export function count(n) {
  if (n === null || n === undefined) return "–";
  if (Math.abs(n) < 10000) return plain.format(n);
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (Math.abs(n) >= size) return `${(n / size).toFixed(Math.abs(n) >= 100 * size ? 0 : 1)} ${unit}`;
  }
  return plain.format(n);
}

export function rate(n) {
  if (!n) return "0/s";
  if (n < 0.05) return "< 0.1/s";
  return `${n < 10 ? n.toFixed(1) : count(n)}/s`;
}

export function bytes(n) {
  if (n < 1024) return `${plain.format(n)} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let value = n;
  let unit = "B";
  for (const next of units) {
    if (value < 1024) break;
    value /= 1024;
    unit = next;
  }
  return `${value.toFixed(value < 10 ? 1 : 0)} ${unit}`;
}

export function ms(n) {
  if (n === null || n === undefined) return "–";
  if (n >= 1000) return `${(n / 1000).toFixed(2)} s`;
  return `${n < 10 ? n.toFixed(2) : n.toFixed(0)} ms`;
}

export function seconds(n) {
  if (n < 60) return `${Math.floor(n)} s`;
  if (n < 3600) return `${Math.floor(n / 60)} min`;
  if (n < 86400) return `${Math.floor(n / 3600)} h ${Math.floor((n % 3600) / 60)} min`;
  return `${Math.floor(n / 86400)} d ${Math.floor((n % 86400) / 3600)} h`;
}

export function ago(time, now = Date.now()) {
  return time ? `${seconds(Math.max(0, now - time) / 1000)} ago` : "–";
}

export function moment(time) {
  const d = new Date(time);
  const two = (n) => String(n).padStart(2, "0");
  const day = `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}`;
  return `${day} ${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
}

export function hexdump(base64) {
  const raw = atob(base64);
  const lines = [];
  for (let at = 0; at < raw.length; at += 16) {
    const part = raw.slice(at, at + 16);
    const hex = Array.from(part, (c) => c.charCodeAt(0).toString(16).padStart(2, "0"));
    const text = Array.from(part, (c) => (c >= " " && c <= "~" ? c : "."));
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex.join(" ").padEnd(47)}  ${text.join("")}`);
  }
  return lines.join("\n");
}
