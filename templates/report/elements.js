{# SPDX-License-Identifier: Apache-2.0 -#}
const report = JSON.parse(document.getElementById("report-data").textContent);
// An element with classes, attributes and children; text is text, whatever is in it.
const make = (tag, ...parts) => {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  for (const part of parts.flat()) {
    if (part === null || part === undefined) continue;
    if (typeof part === "object" && !(part instanceof Node)) for (const key in part) element.setAttribute(key, part[key]);
    else element.append(part);
  }
  return element;
};
const count = (number) => number.toLocaleString("en");
const shape = (extents) => extents.join("\u00d7") || "scalar";
const short = (number) => String(Number(number.toPrecision(3)));
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const duration = (ms) => (ms >= 100 ? `${count(Math.round(ms))} ms` : ms >= 0.001 ? `${short(ms)} ms` : `${short(1000 * ms)} \u00b5s`);
const rows = (head, lines, left = 1) => {
  const cell = (text, k, tag = "td") => make(k < left ? `${tag}.text` : tag, tag === "th" ? { scope: "col" } : null, text);
  const table = make("table.narrow", make("thead", make("tr", head.map((text, k) => cell(text, k, "th")))));
  table.append(make("tbody", lines.map((line) => make("tr", line.map((text, k) => cell(text, k))))));
  return make("div.scroll", { tabindex: "0", role: "group", "aria-label": "table, scrolls sideways" }, table);
};
document.body.classList.add("has-script");
