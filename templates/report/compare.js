{# SPDX-License-Identifier: Apache-2.0 -#}
// This report against another, which was before it; layers are matched by their names.
{
  const place = document.getElementById("comparison");
  const change = (before, after) => {
    if (before === null || after === null || before === undefined || after === undefined) return "";
    if (before === after) return "same";
    if (!before) return "new";
    return `${after >= before ? "+" : "\u2212"}${Math.abs(100 * (after / before - 1)).toFixed(1)} %`;
  };
  const line = (name, before, after, form = count) => {
    const text = (value) => (value === null || value === undefined ? "" : form(value));
    const mark = make(before > after ? "b.better" : before < after ? "b.worse" : "span", change(before, after));
    return [name, text(before), text(after), mark];
  };
  const bare = (name) => name.replace(/^#\d+ /, "");
  const named = (layers) => {
    const seen = new Map();
    return new Map(layers.map((layer) => {
      const name = bare(layer.name), number = (seen.get(name) ?? 0) + 1;
      seen.set(name, number);
      return [number > 1 ? `${name} (${number})` : name, layer];
    }));
  };
  const accuracy = (data) => (data.accuracy?.total ? data.accuracy.correct / data.accuracy.total : null);
  const compared = (before, after) => {
    const [a, b] = [before.totals, after.totals];
    const totals = [];
    if (before.measured && after.measured && before.measured.unit === after.measured.unit)
      totals.push(line(`measured, ${after.measured.unit}`, before.measured.time, after.measured.time));
    totals.push(line("estimated cycles", a.cycles, b.cycles));
    totals.push(line("estimated time", a.milliseconds, b.milliseconds, duration));
    for (const [key, name] of [["macs", "multiply-accumulates"], ["flash", "flash, bytes"], ["ram", "RAM, bytes"], ["arena", "arena, bytes"], ["weights", "weights, bytes"]])
      totals.push(line(name, a[key], b[key]));
    totals.push(line("stack, bytes", before.stack.bytes, after.stack.bytes));
    const right = [accuracy(before), accuracy(after)];
    if (right[0] !== null && right[1] !== null) {
      const points = 100 * (right[1] - right[0]);
      totals.push(["accuracy", ...right.map((share) => `${(100 * share).toFixed(2)} %`), make(points > 0 ? "b.better" : points < 0 ? "b.worse" : "span", `${points < 0 ? "\u2212" : "+"}${Math.abs(points).toFixed(2)} points`)]);
    }
    const [old, now] = [named(before.layers), named(after.layers)];
    const layers = [...new Set([...now.keys(), ...old.keys()])].map((name) => {
      const [x, y] = [old.get(name), now.get(name)];
      const flash = (layer) => (layer ? layer.code + layer.constants : null);
      return [...line(name, x?.cycles, y?.cycles), ...line(name, flash(x), flash(y)).slice(1)];
    });
    const title = (data) => `${data.model} on ${data.board.name}, ${data.options.optimize ?? ""} (${data.source})`;
    return [
      make("p", make("b", "Before: "), title(before), make("br"), make("b", "After: "), title(after)),
      make("div.bars", make("div", make("h3", "All"), rows(["", "before", "after", "change"], totals.filter((each) => each[1] || each[2]))),
        make("div", make("h3", "By layer"), rows(["layer", "cycles before", "after", "change", "flash before", "after", "change"], layers))),
    ];
  };
  const read = (text) => {
    const page = /<script type="application\/json" id="report-data">(.*?)<\/script>/s.exec(text);
    const data = JSON.parse(page ? page[1] : text);
    if (data.report_version !== report.report_version) throw new TypeError("of another version");
    return data;
  };
  document.getElementById("other")?.addEventListener("change", async (event) => {
    const [file] = event.target.files;
    if (!file) return;
    try {
      place.replaceChildren(...compared(read(await file.text()), report));
    } catch {
      place.replaceChildren(make("p.worse", `${file.name} is no report of this version of microc.`));
    }
  });
  const before = document.getElementById("before-data");
  if (before) place.replaceChildren(...compared(JSON.parse(before.textContent), report));
}
