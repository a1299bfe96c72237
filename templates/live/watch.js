{# SPDX-License-Identifier: Apache-2.0 -#}
const SVG = "http://www.w3.org/2000/svg";
const kept = 240;
const by = (id) => document.getElementById(id);
const make = (tag, ...parts) => {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  element.append(...parts);
  return element;
};
const number = (value) => (value === null ? "not finite" : Math.abs(value) >= 1e6 || (value && Math.abs(value) < 1e-3) ? value.toExponential(3) : String(Number(value.toPrecision(5))));
const count = (value) => value.toLocaleString("en");
const fact = (element, value, note = "") => {
  element.firstChild.data = value;
  element.lastElementChild.textContent = note;
};
const caption = (view) => make("figcaption", make("b", view.name), ` ${view.dtype} ${view.shape.join("\u00d7") || "scalar"}`);
// Curves in a box of 1 by 1, from the least to the largest of their numbers.
const trace = (series, label) => {
  const finite = series.flat().filter((value) => value !== null);
  const [low, high] = [Math.min(...finite), Math.max(...finite)];
  const at = (value) => (high > low ? 0.95 - (0.9 * (value - low)) / (high - low) : 0.5);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "trace");
  svg.setAttribute("viewBox", "0 0 1 1");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  series.forEach((curve, k) => {
    const path = document.createElementNS(SVG, "path");
    let pen = "M";
    path.setAttribute("d", curve.map((value, i) => {
      if (value === null) return (pen = "M"), "";
      const step = `${pen}${(i / Math.max(1, curve.length - 1)).toFixed(4)} ${at(value).toFixed(4)}`;
      pen = "L";
      return step;
    }).join(""));
    path.setAttribute("class", `curve${k % 7}`);
    svg.append(path);
  });
  const range = finite.length ? `${number(low)} to ${number(high)}` : "nothing finite";
  return [svg, make("small", range)];
};
const drawers = {
  picture: (view) => {
    const canvas = make("canvas");
    [canvas.width, canvas.height] = [view.width, view.height];
    const bytes = Uint8Array.from(atob(view.pixels), (letter) => letter.charCodeAt(0));
    const image = new ImageData(view.width, view.height);
    for (let k = 0; k < view.width * view.height; k++)
      for (let c = 0; c < 4; c++) image.data[4 * k + c] = c === 3 ? 255 : bytes[view.channels * k + (view.channels === 3 ? c : 0)];
    canvas.getContext("2d").putImageData(image, 0, 0);
    return [canvas];
  },
  curves: (view) => trace(view.series, view.name),
  bars: (view, event) => {
    const finite = view.values.map((value) => value ?? 0);
    const [low, high] = [Math.min(0, ...finite), Math.max(...finite)];
    const best = finite.indexOf(high);
    return finite.map((value, k) => {
      const bar = make("i");
      bar.style.width = `${(100 * (value - low)) / (high - low || 1)}%`;
      const line = make("div.score", make("span", String(k)), make("span.track", bar), make("span", number(view.values[k])));
      if (k === best) line.classList.add("best");
      if (k === event.label) line.classList.add("truth");
      return line;
    });
  },
  numbers: (view) => [make("p.numbers", view.values.map(number).join("  "))],
};
const draw = (place, views, event) => place.replaceChildren(...views.map((view) => make("figure", caption(view), ...drawers[view.kind](view, event))));
const past = new Map();
const remember = (name, values) => {
  const series = past.get(name) ?? values.map(() => []);
  values.forEach((value, k) => {
    series[k].push(value);
    if (series[k].length > kept) series[k].shift();
  });
  past.set(name, series);
};
let paused = false, right = 0, judged = 0;
const see = (event) => {
  fact(by("run"), count(event.run + 1), event.sample === null ? "" : `sample ${event.sample}`);
  fact(by("time"), event.seconds === null ? count(event.time) : `${number(1000 * event.seconds)} ms`, event.seconds === null ? event.unit : `${count(event.time)} ${event.unit}`);
  fact(by("answer"), event.answer === null ? "\u2013" : `class ${event.answer}`, event.label === null ? "" : `truth: class ${event.label}`);
  if (event.label !== null && event.answer !== null) {
    judged += 1;
    right += event.label === event.answer;
    by("right").hidden = false;
    fact(by("right").querySelector("dd"), `${((100 * right) / judged).toFixed(1)} %`, `${count(right)} of ${count(judged)} seen`);
  }
  for (const view of event.outputs) if ((view.kind === "bars" && view.values.length <= 7) || (view.kind === "numbers" && view.values.length <= 7)) remember(view.name, view.values);
  remember(`time, ${event.unit}`, [event.time]);
  if (paused) return;
  draw(by("in"), event.inputs, event);
  draw(by("out"), event.outputs, event);
  by("history").replaceChildren(...[...past].map(([name, series]) => make("figure", make("figcaption", make("b", name)), ...trace(series, name))));
};
const state = (kind, words) => {
  document.body.className = kind;
  by("state").textContent = words;
};
by("pause").addEventListener("click", () => {
  paused = !paused;
  by("pause").textContent = paused ? "Go on" : "Pause";
});
const stream = new EventSource("events");
stream.addEventListener("message", (message) => {
  state("running", "running");
  see(JSON.parse(message.data));
});
stream.addEventListener("error", () => state("ended", stream.readyState === EventSource.CLOSED ? "ended" : "no connection: it ended, or tries again"));
