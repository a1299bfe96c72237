/* SPDX-License-Identifier: Apache-2.0 */
// What is wrong with the layout of a page, as sentences: an expression for Chromium.evaluate.
(() => {
  "use strict";
  const faults = [];
  const tell = (what, element) => {
    const node = element instanceof Element ? element : element.parentElement;
    const name = `${node.tagName.toLowerCase()}.${node.getAttribute("class") ?? ""}`;
    faults.push(`${what}: ${name} ${JSON.stringify(node.textContent.trim().slice(0, 60))}`);
  };
  const all = (query) => [...document.querySelectorAll(query)];
  const box = (element) => element.getBoundingClientRect();
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) faults.push(`the page is ${root.scrollWidth} wide, ${root.clientWidth} are there`);

  // Bars: a width in percent is that of the track, and something can be seen of each.
  for (const bar of all('[style*="width:"]')) {
    const track = box(bar.parentElement), { width, height } = box(bar);
    if (!bar.checkVisibility()) continue; // .marks at narrow widths
    if (track.width < 80) tell(`a track of ${track.width} pixels`, bar.parentElement);
    if (width < 1 || height < 6) tell(`a bar of ${width} x ${height} pixels`, bar);
    const percent = /([\d.]+)%/.exec(bar.style.width);
    if (percent && getComputedStyle(bar).position === "absolute" && Math.abs(width - (track.width * percent[1]) / 100) > 3)
      tell(`a bar of ${width} pixels for ${percent[0]} of ${track.width}`, bar);
    if (width > 0 && (box(bar).left < track.left - 1 || box(bar).right > track.right + 3)) tell("a bar outside of its track", bar);
  }
  for (const shape of all("svg rect, svg circle")) {
    if (shape.closest("defs")) continue;
    const { width, height } = box(shape);
    if (shape.matches(".share")) continue; // a layer may take nothing
    if (width <= 0 || height <= 0) tell(`a shape of ${width} x ${height} pixels`, shape);
  }
  for (const picture of all("svg, canvas")) {
    const { width, height } = box(picture);
    if (width < 8 || height < 8) tell(`a picture of ${width} x ${height} pixels`, picture);
  }

  // Text: what of it can be seen, as rectangles, and what its ancestors cut off.
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    if (!node.data.trim() || parent.closest("script, style, noscript, title, defs, pre") || !parent.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const lines = new Set([...range.getClientRects()].map((line) => Math.round(line.top)));
    if (/^[\d.,\s]+$/.test(node.data) && lines.size > 1) tell("a number over several lines", node);
    for (const found of range.getClientRects()) {
      let { left, right, top, bottom } = found;
      let scrolls = false;
      for (let above = parent; above && above !== root; above = above.parentElement) {
        const style = getComputedStyle(above);
        const clips = above instanceof SVGElement ? above.tagName === "svg" || style.clipPath !== "none" : style.overflowX !== "visible";
        if (!clips || above === document.body) continue;
        const frame = box(above.tagName === "g" ? above.closest("a, g.layer, g.end") ?? above : above);
        const can = style.overflowX === "auto" || style.overflowX === "scroll";
        const hinted = style.textOverflow === "ellipsis" && above.closest("[title]");
        if (!can && !scrolls && !hinted && (left < frame.left - 1.5 || right > frame.right + 1.5)) tell("text is cut off sideways", node);
        if (!can && !scrolls && (top < frame.top - 3 || bottom > frame.bottom + 3)) tell("text is cut off above or below", node);
        scrolls ||= can;
        [left, right] = [Math.max(left, frame.left), Math.min(right, frame.right)];
        [top, bottom] = [Math.max(top, frame.top), Math.min(bottom, frame.bottom)];
      }
      if (!scrolls && (left < -1 || right > root.clientWidth + 1)) tell("text leaves the page", node);
      const size = parseFloat(getComputedStyle(parent).fontSize);
      const svg = parent instanceof SVGElement && parent.ownerSVGElement;
      const shown = svg && !svg.matches(".graph") ? size * svg.getScreenCTM().a : size; // a graph can be zoomed
      if (shown < 9) tell(`letters of ${shown.toFixed(1)} pixels`, node);
      if (right - left > 1 && bottom - top > 1) texts.push({ left, right, top, bottom, node });
    }
  }
  texts.sort((a, b) => a.top - b.top);
  texts.forEach((a, k) => {
    for (let n = k + 1; n < texts.length && texts[n].top < a.bottom - 4; ++n) {
      const b = texts[n];
      if (a.node === b.node) continue; // lines of one paragraph, or a name and its ellipsis
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2 && Math.min(a.bottom, b.bottom) - b.top > 4)
        tell(`text over ${JSON.stringify(b.node.data.trim().slice(0, 40))}`, a.node);
    }
  });

  // Contrast of text in HTML: 4.5 as WCAG 2.1 (1.4.3) asks.
  const numbers = (colour) => colour.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)).reduce((sum, c, k) => sum + c * [0.2126, 0.7152, 0.0722][k], 0);
  const behind = (element) => {
    for (let above = element; above; above = above.parentElement) {
      const colour = numbers(getComputedStyle(above).backgroundColor);
      if (colour[3] === undefined || colour[3] > 0.5) return colour;
    }
    return [255, 255, 255];
  };
  const told = new Set();
  for (const { node } of texts) {
    const element = node.parentElement;
    if (element instanceof SVGElement || element.closest("[aria-disabled], :disabled")) continue;
    const pair = [light(numbers(getComputedStyle(element).color)), light(behind(element))].sort((x, y) => y - x);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    const key = `${element.tagName} ${element.className} ${ratio.toFixed(1)}`;
    if (ratio < 4.5 && !told.has(key)) tell(`contrast ${ratio.toFixed(1)}`, element);
    told.add(key);
  }
  return [...new Set(faults)];
})()
