// The page: the header, the tabs, the views, search and keys.

const data = JSON.parse(document.getElementById("data").textContent);
const TABS = [["graph", "Graph"], ["outline", "Outline"], ["memory", "Memory"], ["time", "Time"], ["placement", "Placement"], ["accuracy", "Accuracy"], ["changes", "Changes"], ["notes", "Notes"]];
const KEYS = "Keys: / search, arrows follow edges, Enter expand, e expand all, c collapse all, + − 0 zoom, 1–6 overlay, t next tab, m next moved node, Esc up.";

class Page {
  constructor() {
    readColours();
    this.views = [];
    this.method = data.reports[0].methods[0]?.name ?? "";
    this.build();
    this.show(this.method);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); this.views.forEach((v) => v.repaint()); });
    document.addEventListener("keydown", (e) => this.key(e));
  }

  build() {
    const methods = [...new Set(data.reports.flatMap((r) => r.methods.map((m) => m.name)))];
    this.select = el("select", { "aria-label": "Method", onchange: () => this.show(this.select.value) }, ...methods.map((name) => el("option", { value: name }, name)));
    this.search = el("input", { type: "search", placeholder: "Search  /", "aria-label": "Search nodes by name, operator, module, source or backend", oninput: () => this.find(), onkeydown: (e) => this.searchKey(e), role: "combobox", "aria-expanded": "false", "aria-controls": "found" });
    this.found = el("ul", { id: "found", role: "listbox", "aria-label": "Found nodes", hidden: "" });
    this.overlays = el("div", { class: "overlays", role: "radiogroup", "aria-label": "Overlay" }, ...OVERLAYS.map((overlay, i) => el("button", { type: "button", role: "radio", "aria-checked": String(!i), title: overlay.help || "the backend of each node", onclick: () => this.setOverlay(overlay) }, `${i + 1} ${overlay.name}`)));
    this.tabs = el("div", { class: "tabs", role: "tablist" }, ...TABS.map(([key, name]) => el("button", { type: "button", role: "tab", id: "tab-" + key, "aria-controls": "panel", onclick: () => this.openTab(key) }, name)));
    this.status = el("div", { class: "sr", role: "status", "aria-live": "polite" });
    this.stage = el("div", { class: "stage" });
    this.side = el("aside", { tabindex: "-1", "aria-label": "Details" });
    this.panel = el("section", { class: "panel", id: "panel", role: "tabpanel", tabindex: "0", hidden: "" });
    const summary = data.reports.map((r) => el("p", { class: "summary" }, data.reports.length > 1 ? el("b", {}, r.name + " ") : "", r.summary.join(" · ")));
    document.getElementById("app").append(
      el("header", {}, el("h1", {}, data.reports.map((r) => r.name).join("  ↔  ")), methods.length > 1 ? this.select : "", el("div", { class: "search" }, this.search, this.found), this.overlays, ...summary),
      this.tabs,
      el("main", {}, this.stage, this.side, this.panel),
      el("footer", {}, KEYS), this.status);
  }

  show(name) {
    this.method = this.select.value = name;
    this.stage.replaceChildren();
    const graphs = data.reports.map((report) => {
      const method = report.methods.find((m) => m.name === name);
      return method ? buildGraph(report, method) : null;
    });
    if (graphs.length === 2 && graphs[0] && graphs[1]) compare(graphs[0], graphs[1]);
    const joint = [...new Set(graphs.flatMap((g) => g?.backends ?? []))]; // one colour per backend in both
    this.views = graphs.map((graph, i) => {
      const box = el("div", { class: "view" }, data.reports.length > 1 ? el("h2", {}, data.reports[i].name) : "");
      this.stage.append(box);
      if (!graph) { box.append(el("p", {}, `It has no method ${name}.`)); return null; }
      graph.backends = joint;
      return new View(box, graph, this);
    }).filter(Boolean);
    this.active = this.views[0];
    this.setOverlay(OVERLAYS[0]);
    this.showDetails(this.active, null);
    this.openTab("graph");
  }

  activate(view) { this.active = view; }
  said(text) { this.status.textContent = text; }
  focusDetails() { this.side.focus(); }

  showDetails(view, item) {
    this.side.replaceChildren(...details(view, item));
    if (this.views.length < 2 || item?.kind !== "node") return;
    const other = this.views.find((v) => v !== view);
    const twin = other.graph.byName.get(item.name);
    other.selected = twin || null;
    if (twin) other.reveal(twin); else other.draw();
  }

  hasValues(overlay) {
    return overlay.key === "backend" || this.views.some((v) => v.graph.leaves.some((leaf) => overlay.value(leaf)));
  }

  setOverlay(overlay) {
    if (!this.hasValues(overlay)) return this.said(`${overlay.name}: this report has no such values`);
    this.overlay = overlay;
    [...this.overlays.children].forEach((button, i) => {
      button.setAttribute("aria-checked", String(OVERLAYS[i] === overlay));
      const has = this.hasValues(OVERLAYS[i]);
      button.setAttribute("aria-disabled", String(!has));
      if (!has) button.title = "this report has no such values";
    });
    for (const view of this.views) {
      view.overlay = overlay;
      view.repaint();
      view.legend.replaceChildren(...(overlay.key === "backend" ? view.graph.backends.map((name) => swatch(name, view.graph.backends)) : [el("span", {}, overlay.inverted ? "80 dB or more" : "0"), el("i", { class: "scale" }), el("span", {}, overlay.inverted ? "0 dB" : "most"), el("span", { class: "muted" }, overlay.help)]));
    }
    this.said(`Overlay ${overlay.name}`);
  }

  openTab(key) {
    this.tab = key;
    for (const button of this.tabs.children) {
      const chosen = button.id === "tab-" + key;
      button.setAttribute("aria-selected", String(chosen));
      button.setAttribute("tabindex", chosen ? "0" : "-1");
      if (button.id === "tab-changes") button.hidden = this.views.length < 2;
    }
    const graph = key === "graph";
    this.stage.hidden = !graph;
    this.side.hidden = !graph && key !== "outline";
    this.panel.hidden = graph;
    if (graph) return;
    this.panel.setAttribute("aria-labelledby", "tab-" + key);
    const content = { outline: (v) => [outline(v)], memory: memoryPanel, time: timePanel, placement: placementPanel, accuracy: accuracyPanel }[key];
    if (content) this.panel.replaceChildren(...this.views.map((view, i) => el("div", { class: "column" }, this.views.length > 1 ? el("h1", {}, data.reports[i].name) : "", ...content(view))));
    else if (key === "changes") this.panel.replaceChildren(el("div", { class: "column" }, ...this.changes()));
    else this.panel.replaceChildren(...data.reports.map((r) => el("div", { class: "column" }, el("h1", {}, r.name), r.notes.length ? el("ul", {}, ...r.notes.map((n) => el("li", {}, n))) : el("p", {}, "No notes."))));
  }

  changes() {
    const [first, second] = this.views;
    const moved = first.graph.leaves.filter((leaf) => leaf.moved && second.graph.byName.has(leaf.name));
    const only = (view, other) => view.graph.leaves.filter((leaf) => !other.graph.byName.has(leaf.name));
    const list = (view, leaves, caption) => (leaves.length ? table(["Node", "Operator", "Backend"], leaves.slice(0, 500).map((n) => [nodeLink(view, n), n.op, n.backend]), caption) : el("p", {}, `${caption}: none.`));
    return [
      moved.length ? table(["Node", "Operator", "First", "Second", "Module"], moved.slice(0, 1000).map((n) => [nodeLink(first, n), n.op, swatch(n.backend, first.graph.backends), swatch(second.graph.byName.get(n.name).backend, first.graph.backends), n.module]), `${moved.length} nodes moved`) : el("p", {}, "No node moved."),
      list(first, only(first, second), "Only in the first"), list(second, only(second, first), "Only in the second"),
    ];
  }

  find() {
    const text = this.search.value.trim().toLowerCase();
    const matches = [];
    if (text) {
      for (const view of this.views) {
        for (const leaf of view.graph.all) {
          if ([leaf.name, leaf.op, leaf.module, leaf.source, leaf.backend, leaf.partition].some((t) => t.toLowerCase().includes(text))) matches.push({ view, leaf });
        }
      }
    }
    this.matches = matches;
    this.at = 0;
    this.found.replaceChildren(...matches.slice(0, 60).map(({ view, leaf }, i) => el("li", { role: "option", id: "match-" + i, "aria-selected": String(!i), onpointerdown: (e) => { e.preventDefault(); this.go(i); } }, el("b", {}, leaf.name), el("span", { class: "muted" }, ` ${title(leaf)} ${leaf.module}`), swatch(leaf.backend, view.graph.backends))));
    if (text && !matches.length) this.found.append(el("li", { class: "muted" }, "Nothing found"));
    this.found.hidden = !text;
    this.search.setAttribute("aria-expanded", String(!!text));
    if (text) this.said(`${matches.length} found`);
  }

  go(at) {
    const match = this.matches?.[at];
    if (!match) return;
    this.at = at;
    this.found.querySelectorAll("li").forEach((li, i) => li.setAttribute("aria-selected", String(i === at)));
    this.search.setAttribute("aria-activedescendant", "match-" + at);
    this.openTab("graph");
    match.view.reveal(match.leaf);
    match.view.select(match.leaf);
  }

  searchKey(e) {
    const count = this.matches?.length || 0;
    if (e.key === "Escape") { this.search.value = ""; this.find(); this.active.canvas.focus(); }
    else if (e.key === "Enter") { this.go(this.at); this.found.hidden = true; this.active.canvas.focus(); }
    else if (e.key === "ArrowDown" && count) { e.preventDefault(); this.go((this.at + 1) % count); }
    else if (e.key === "ArrowUp" && count) { e.preventDefault(); this.go((this.at + count - 1) % count); }
  }

  nextMoved() {
    const moved = this.active.graph.leaves.filter((leaf) => leaf.moved);
    if (!moved.length) return this.said("No node moved");
    const next = moved.find((leaf) => leaf.index > (this.active.selected?.index ?? -1)) || moved[0];
    this.openTab("graph");
    this.active.reveal(next);
    this.active.select(next);
  }

  key(e) {
    if (e.target.matches("input, select, textarea") || e.ctrlKey || e.metaKey || e.altKey) return;
    const overlay = OVERLAYS[Number(e.key) - 1];
    if (overlay) return this.setOverlay(overlay);
    if (e.key === "/") { e.preventDefault(); this.search.focus(); this.search.select(); }
    if (e.key === "m") this.nextMoved();
    if (e.key === "t") {
      const shown = TABS.filter(([key]) => key !== "changes" || this.views.length > 1);
      this.openTab(shown[(shown.findIndex(([key]) => key === this.tab) + 1) % shown.length][0]);
    }
    if (e.target.getAttribute("role") === "tab" && (e.key === "ArrowRight" || e.key === "ArrowLeft")) {
      const shown = [...this.tabs.children].filter((b) => !b.hidden);
      const next = shown[(shown.indexOf(e.target) + (e.key === "ArrowRight" ? 1 : -1) + shown.length) % shown.length];
      next.click();
      next.focus();
    }
  }
}

// Mark the nodes of two graphs whose backends differ, or which only one graph has, and the groups that hold them.
function compare(first, second) {
  for (const [graph, other] of [[first, second], [second, first]]) {
    for (const leaf of graph.leaves) {
      const twin = other.byName.get(leaf.name);
      if (twin && twin.backend === leaf.backend) continue;
      leaf.moved = twin ? `on ${twin.backend}` : "absent";
      for (let at = leaf.parent; at; at = at.parent) at.moved = "holds moved nodes";
    }
  }
}

window.delegatePage = new Page();
