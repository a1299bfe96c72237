{# SPDX-License-Identifier: Apache-2.0 -#}
// The layer that the address names (#step-3), in full.
const panel = document.getElementById("layer");
const tensors = new Map(report.tensors.map((tensor) => [tensor.name, tensor]));
const quantised = (tensor) => {
  if (tensor.scale === null) return "";
  const zero = tensor.zero_point ?? 0;
  return `${Number(tensor.scale.toPrecision(4))}` + (zero ? ` (q ${zero > 0 ? "\u2212" : "+"} ${Math.abs(zero)})` : " q");
};
const scales = (weights) => {
  if (!weights.scales) return "";
  const [low, high, number] = weights.scales;
  return number === 1 ? `${short(low)} q` : `${number} scales, ${short(low)} to ${short(high)}, axis ${weights.axis}`;
};
// Converters glue names together, and begin them with long paths: the end of the first says enough, and what we put behind all.
const tidy = (name) => {
  const own = name.includes(";") ? (/\.\w+$/.exec(name)?.[0] ?? "") : "";
  return make("span", { title: name }, name.split(";")[0].split("/").slice(-3).join("/") + own);
};
const facts = (layer) => {
  const { measured } = report;
  const time = measured ? layer.time : layer.cycles;
  const found = [[measured ? measured.unit : "cycles", count(time), percent(layer.share)]];
  if (layer.milliseconds !== null) found.push(["time", duration(layer.milliseconds), "estimated"]);
  found.push(["MACs", count(layer.macs), layer.macs ? `${(time / layer.macs).toFixed(2)} ${measured ? measured.unit : "cycles"} each` : ""]);
  found.push(["flash", count(layer.code + layer.constants), `${count(layer.code)} code${layer.linked ? "" : ", est."}`]);
  found.push(["arena", count(layer.arena), "bytes in use"]);
  return make("dl.facts.few", found.map(([name, value, note]) => make("div", make("dt", name), make("dd", value, note ? make("small", note) : null))));
};
const flow = (layer) => {
  const line = (what) => (name) => {
    const tensor = tensors.get(name);
    return tensor ? [what, name, `${tensor.dtype} ${shape(tensor.shape)}`, quantised(tensor)] : [what, name, "", ""];
  };
  const lines = [...layer.inputs.map(line("takes")), ...layer.outputs.map(line("gives"))];
  for (const operator of layer.operators)
    for (const weights of operator.weights) lines.push(["holds", tidy(weights.name), `${weights.dtype} ${shape(weights.shape)}`, scales(weights)]);
  return rows(["", "tensor", "type", "stands for"], lines, 4);
};
const attributes = (layer) =>
  layer.operators.filter((operator) => operator.attributes.length).map((operator) =>
    make("p.attributes", make("b", operator.op), operator.attributes.map(([name, value]) => make("span", make("i", name), ` ${value}`))));
// Who lies where in the arena during a step, from the first byte on the left to the last.
const strip = (layer) => {
  const live = report.memory.filter((value) => value.first <= layer.step && layer.step <= value.last);
  const at = (bytes) => `${(100 * bytes) / Math.max(1, report.totals.arena)}%`;
  const bar = make("div.strip", live.map((value) => {
    const block = make(`i.${value.kind}`, { title: `${value.name}: ${value.kind}, ${count(value.bytes)} bytes at ${count(value.offset)}` });
    block.style.left = at(value.offset);
    block.style.width = at(value.bytes);
    return block;
  }));
  const named = live.map((value) => make("li", make(`i.${value.kind}`), `${value.name} ${count(value.bytes)}`));
  return [make("h4", "In the arena"), bar, make("ul.legend", named)];
};
const coloured = (line) => line.split(/(\/\*.*?\*\/|\b(?:const|static|inline|void|return|for|if|else|restrict|volatile|u?int(?:8|16|32|64)_t|float|size_t)\b)/).map((part) =>
  part.startsWith("/*") ? make("em", part) : /^[a-z]/.test(part) && !/[^a-z0-9_]/.test(part) ? make("b", part) : part);
const code = (layer) => {
  if (!layer.c.length) return make("p", "The C of this layer is not in the report.");
  let comment = false;
  const text = layer.c.map((line) => {
    const inside = comment || line.startsWith("/*");
    comment = inside && !line.includes("*/");
    return make("span", inside ? make("em", line) : coloured(line), "\n");
  });
  const copy = make("button.copy", { type: "button" }, "Copy");
  copy.addEventListener("click", () => navigator.clipboard?.writeText(layer.c.join("\n")).then(() => (copy.textContent = "Copied")));
  return make("div.code", make("h4", "Generated C ", make("small", layer.function), copy), make("pre", { tabindex: "0" }, make("code", text)));
};
const shown = (layer) => {
  const step = (by, mark, label) => make("a.step", by < 0 || by >= report.layers.length ? { "aria-disabled": "true" } : { href: `#step-${by}` }, { "aria-label": label }, mark);
  const links = [["time", "timeline"], ["memory", "memory"], ["layers", "table"]].map(([id, text]) => make("a", { href: `#${id}` }, text));
  const head = make("div.head", make("div", make("h3", layer.name), make("small", `step ${layer.step}: ${layer.op.replaceAll("+", " + ")}`)),
    make("nav", step(layer.step - 1, "\u2039", "the layer before"), step(layer.step + 1, "\u203a", "the next layer")));
  const schedule = make("details", make("summary", `Schedule: ${layer.rule || "as written"}`), make("p.schedule", layer.schedule || "no steps"));
  return [head, facts(layer), make("p.links", "In the ", links), flow(layer), attributes(layer), schedule, strip(layer), code(layer)];
};
const select = () => {
  const named = /^#step-(\d+)$/.exec(location.hash);
  const layer = report.layers[named ? Number(named[1]) : -1];
  if (!layer) return false;
  for (const element of document.querySelectorAll(".selected")) element.classList.remove("selected");
  for (const element of document.querySelectorAll(`[data-step="${layer.step}"]`)) element.classList.add("selected");
  panel.replaceChildren(...shown(layer).flat());
  return true;
};
addEventListener("hashchange", () => {
  if (!select()) return;
  const box = panel.getBoundingClientRect();
  if (box.top > innerHeight * 0.7 || box.bottom < 80) panel.scrollIntoView({ block: "start", behavior: "smooth" });
});
if (!select() && report.layers[first]) {
  for (const element of document.querySelectorAll(`[data-step="${first}"]`)) element.classList.add("selected");
  panel.replaceChildren(...shown(report.layers[first]).flat());
}
