{# SPDX-License-Identifier: Apache-2.0 -#}
// Zoom by buttons, by the wheel with Ctrl and by two fingers; a mouse drags. Without any of it the graph scrolls.
{
  const svg = document.querySelector("svg.graph");
  const view = svg.parentElement;
  const [width, height] = [svg.width.baseVal.value, svg.height.baseVal.value];
  const least = 0.1, most = 3;
  let scale = 1;
  const zoom = (wanted, x = view.clientWidth / 2, y = view.clientHeight / 2) => {
    const next = Math.min(most, Math.max(least, wanted));
    const [left, top] = [(view.scrollLeft + x) / scale, (view.scrollTop + y) / scale];
    scale = next;
    svg.setAttribute("width", width * scale);
    svg.setAttribute("height", height * scale);
    view.scrollTo(left * scale - x, top * scale - y);
  };
  const fit = () => zoom(Math.min(1, Math.max(0.4, (view.clientWidth - 16) / width)), 0, 0);
  const centre = () => {
    const box = svg.querySelector("a.selected")?.getBoundingClientRect(), frame = view.getBoundingClientRect();
    if (!box || (box.top >= frame.top && box.bottom <= frame.bottom && box.left >= frame.left && box.right <= frame.right)) return;
    view.scrollBy(box.left + box.width / 2 - frame.left - frame.width / 2, box.top + box.height / 2 - frame.top - frame.height / 2);
  };
  for (const button of document.querySelectorAll("[data-zoom]"))
    button.addEventListener("click", () => (button.dataset.zoom === "fit" ? fit() : zoom(scale * (button.dataset.zoom === "in" ? 1.25 : 0.8))));
  view.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const frame = view.getBoundingClientRect();
    zoom(scale * Math.exp(-event.deltaY / 300), event.clientX - frame.left, event.clientY - frame.top);
  }, { passive: false });
  let apart = 0;
  view.addEventListener("touchmove", (event) => {
    if (event.touches.length !== 2) return void (apart = 0);
    event.preventDefault();
    const [a, b] = event.touches, frame = view.getBoundingClientRect();
    const now = Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
    if (apart) zoom((scale * now) / apart, (a.clientX + b.clientX) / 2 - frame.left, (a.clientY + b.clientY) / 2 - frame.top);
    apart = now;
  }, { passive: false });
  view.addEventListener("touchend", () => (apart = 0));
  let held = null, moved = false;
  view.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" || event.button !== 0) return;
    held = [event.clientX, event.clientY, view.scrollLeft, view.scrollTop];
    moved = false;
  });
  addEventListener("pointermove", (event) => {
    if (!held) return;
    const [x, y] = [event.clientX - held[0], event.clientY - held[1]];
    moved ||= Math.hypot(x, y) > 4;
    if (moved) view.scrollTo(held[2] - x, held[3] - y);
  });
  addEventListener("pointerup", () => (held = null));
  view.addEventListener("click", (event) => moved && event.preventDefault(), true);
  view.addEventListener("dragstart", (event) => event.preventDefault());
  addEventListener("hashchange", centre);
  fit();
  centre();
}
