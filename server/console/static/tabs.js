// The tabs: the address names the one that is shown (#/chat), and arrow keys move between them.

import { byId } from "./page.js";

const NAMES = ["chat", "overview", "methods", "audit"];

/** Connects the tabs; `onShow` is called with the name of each tab that is shown. */
export function connect(onShow) {
  const show = (name) => {
    for (const each of NAMES) {
      const tab = byId(`tab-${each}`);
      tab.setAttribute("aria-selected", String(each === name));
      tab.tabIndex = each === name ? 0 : -1;
      byId(`${each}-view`).hidden = each !== name;
    }
    onShow(name);
  };
  const go = (name) => {
    // `specgate console --all` is told by its address: #fleet, whose table is on the overview.
    if (location.hash !== "#fleet") history.replaceState(null, "", `#/${name}`);
    show(name);
    byId(`tab-${name}`).focus();
  };
  NAMES.forEach((name, i) => {
    byId(`tab-${name}`).addEventListener("click", () => go(name));
    byId(`tab-${name}`).addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) go(NAMES[(i + step + NAMES.length) % NAMES.length]);
    });
  });
  const first = location.hash === "#fleet" ? "overview" : location.hash.replace("#/", "");
  show(NAMES.includes(first) ? first : NAMES[0]);
}
