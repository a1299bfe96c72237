// SPDX-License-Identifier: Apache-2.0
// What scrolls sideways can be reached by the keyboard: tables that the theme wraps, and blocks of code.
addEventListener("load", () => {
  const mark = () => {
    for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code")) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  mark();
  addEventListener("resize", mark);
});
