// The view: one graph on a canvas, with pan, zoom, selection and overlays.

const PALETTE = ["#4269d0", "#d98c00", "#3ca951", "#a463f2", "#e0533d", "#2a9d9d", "#c2478a", "#8a6d3b"];
const GREY = "#85898f", MOVED = "#e6308a";
let colours = {};

function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["surface", "raised", "text", "muted", "line", "accent", "low", "high"]) colours[name] = style.getPropertyValue("--" + name).trim();
}

function mix(a, b, share) {
  const parts = [1, 3, 5].map((at) => Math.round(parseInt(a.slice(at, at + 2), 16) * (1 - share) + parseInt(b.slice(at, at + 2), 16) * share));
  return "#" + parts.map((p) => p.toString(16).padStart(2, "0")).join("");
}

function backendColour(name, backends) {
  return name === PORTABLE || !name ? GREY : PALETTE[backends.indexOf(name) % PALETTE.length];
}

class View {
  constructor(box, graph, page) {
    Object.assign(this, { box, graph, page, scale: 1, tx: 0, ty: 0, selected: null, highlighted: null, overlay: OVERLAYS[0], frames: 0 });
    this.canvas = el("canvas", { tabindex: "0", role: "application", "aria-roledescription": "graph", "aria-label": "Graph of the model. Arrow keys follow edges, Enter expands. The Outline tab has the same as a tree." });
    this.overview = new Overview(this);
    this.legend = el("div", { class: "legend" });
    this.tip = el("div", { class: "tip", hidden: "" });
    box.append(this.canvas, this.legend, this.tip);
    this.context = this.canvas.getContext("2d");
    expandSome(graph.root, 45);
    this.relayout();
    this.events();
    new ResizeObserver(() => this.resize()).observe(box);
    this.resize();
    this.fit();
  }

  relayout(anchor) {
    const before = anchor && { x: anchor.x, y: anchor.y };
    layout(this.graph.root);
    this.overview.stale = true;
    place(this.graph.root, 0, 0);
    if (before) {
      this.tx += (before.x - anchor.x) * this.scale;
      this.ty += (before.y - anchor.y) * this.scale;
    }
    this.draw();
  }

  resize() {
    const { clientWidth: w, clientHeight: h } = this.box;
    if (!w || !h) return;
    this.width = w; this.height = h; this.ratio = devicePixelRatio || 1;
    this.canvas.width = w * this.ratio; this.canvas.height = h * this.ratio;
    if (this.moved) this.draw(); else this.fit();
  }

  // Show the whole graph, or its upper part if the whole would be too small to read.
  fit() {
    const { w, h } = this.graph.root;
    if (!this.width || !w) return;
    const whole = Math.min((this.width - 40) / w, (this.height - 40) / h);
    this.scale = Math.min(1.2, Math.max(whole, Math.min(0.8, (this.width - 40) / w)));
    const free = this.width - (this.overview.box() ? MAP_WIDTH + MAP_MARGIN : 0);
    this.tx = Math.max(10, (free - w * this.scale) / 2);
    this.ty = Math.max(20, (this.height - h * this.scale) / 2);
    this.draw();
  }

  fitAll() {
    const { w, h } = this.graph.root;
    this.scale = Math.min(1.2, (this.width - 30) / w, (this.height - 30) / h);
    this.tx = (this.width - w * this.scale) / 2;
    this.ty = (this.height - h * this.scale) / 2;
    this.draw();
  }

  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const scale = Math.min(4, Math.max(0.004, this.scale * factor));
    this.moved = true;
    this.tx = x - ((x - this.tx) * scale) / this.scale;
    this.ty = y - ((y - this.ty) * scale) / this.scale;
    this.scale = scale;
    this.draw();
  }

  center(item) {
    this.moved = true;
    if (this.scale < 0.45) this.scale = 0.8;
    this.tx = this.width / 2 - (item.x + item.w / 2) * this.scale;
    this.ty = this.height / 2 - (item.y + Math.min(item.h, this.height / this.scale) / 2) * this.scale;
    this.draw();
  }

  // Make an item visible: expand the groups that hold it.
  reveal(item) {
    for (let at = item.parent; at; at = at.parent) if (!at.expanded) expand(at, true);
    this.relayout();
    this.center(item);
  }

  toggle(group) {
    expand(group, !group.expanded);
    this.relayout(group);
    this.page.said(`${title(group)} ${group.expanded ? "expanded" : "collapsed"}`);
  }

  draw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.paint(); });
  }

  paint() {
    const { context: c, ratio, scale } = this;
    if (!this.width) return;
    this.frames++;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.fillStyle = colours.surface;
    c.fillRect(0, 0, this.width, this.height);
    c.setTransform(ratio * scale, 0, 0, ratio * scale, ratio * this.tx, ratio * this.ty);
    this.window = { left: -this.tx / scale, top: -this.ty / scale, right: (this.width - this.tx) / scale, bottom: (this.height - this.ty) / scale };
    this.range = this.valueRange();
    c.textBaseline = "middle";
    this.paintItem(this.graph.root);
    this.overview.paint();
  }

  // Draw again after a change of colours.
  repaint() {
    this.overview.stale = true;
    this.draw();
  }

  valueRange() {
    if (this.overlay.key === "backend") return null;
    let most = 0;
    const walk = (group) => {
      for (const child of group.children) {
        if (child.kind === "group" && child.expanded) walk(child);
        else if (child.kind !== "input") most = Math.max(most, this.overlay.value(child) || 0);
      }
    };
    walk(this.graph.root);
    return most;
  }

  colour(item) {
    if (item.kind === "input") return colours.muted;
    if (this.overlay.key === "backend") {
      if (item.kind === "node") return backendColour(item.backend, this.graph.backends);
      const [first] = [...item.backends].sort((a, b) => b[1] - a[1])[0] || [""];
      return backendColour(first, this.graph.backends);
    }
    const value = this.overlay.value(item);
    if (value == null || Number.isNaN(value)) return null;
    if (this.overlay.inverted) return mix(colours.low, colours.high, 1 - Math.min(1, Math.max(0, value / 80)));
    return mix(colours.low, colours.high, this.range ? Math.sqrt(value / this.range) : 0);
  }

  paintItem(item) {
    const { window: w } = this;
    if (item.x > w.right || item.y > w.bottom || item.x + item.w < w.left || item.y + item.h < w.top) return;
    const open = item.kind === "group" && item.expanded && item.h * this.scale > 5; // smaller ones are one block
    if (item.parent) this.paintBox(item, open);
    if (!open) return;
    this.paintEdges(item);
    for (const child of item.children) this.paintItem(child);
  }

  paintBox(item, open) {
    const { context: c, scale } = this;
    const small = item.h * scale < 9;
    const colour = this.colour(item);
    if (open) c.fillStyle = item.depth % 2 ? colours.raised : colours.surface;
    else c.fillStyle = colour ? mix(colours.raised, colour, this.overlay.key === "backend" ? (small ? 0.6 : 0.2) : 0.85) : colours.raised;
    if (small && !open) c.fillRect(item.x, item.y, item.w, item.h);
    if (small && !open && !item.moved && item !== this.selected && !this.highlighted) return;
    c.beginPath();
    c.roundRect(item.x, item.y, item.w, item.h, item.kind === "input" ? 20 : open ? 10 : 6);
    if (!small || open) c.fill();
    c.lineWidth = (open ? 1 : 1.2) / Math.min(1, Math.max(scale, 0.3));
    c.strokeStyle = open ? colours.line : this.overlay.key === "backend" && colour ? colour : colours.line;
    c.stroke();
    if (!open && !small && item.kind === "group") this.paintShares(item);
    this.paintMark(item);
    if (small || FONT * scale < 4.5) return;
    c.textAlign = open ? "left" : "center";
    const ink = !open && colour && this.overlay.key !== "backend" ? contrast(mix(colours.raised, colour, 0.85)) : colours.text;
    c.fillStyle = ink;
    c.font = `${item.kind === "group" ? 600 : 400} ${FONT}px system-ui, sans-serif`;
    if (open) {
      c.fillText("▾ " + clip(title(item), 60), item.x + 10, item.y + 16);
      return;
    }
    const value = this.overlay.value?.(item);
    const under = value != null && item.kind !== "input" ? this.overlay.text(value) : clip(subtitle(item));
    const x = item.x + item.w / 2;
    c.fillText((item.kind === "group" ? "▸ " : "") + clip(title(item)), x, item.y + (under ? 14 : item.h / 2));
    if (!under) return;
    c.font = `${SMALL}px system-ui, sans-serif`;
    if (ink === colours.text) c.fillStyle = colours.muted;
    c.fillText(under, x, item.y + 29);
  }

  // A strip below a collapsed group: the shares of its backends.
  paintShares(item) {
    const { context: c } = this;
    let x = item.x + 6;
    for (const backend of this.graph.backends) {
      const width = ((item.w - 12) * (item.backends.get(backend) || 0)) / item.leaves;
      c.fillStyle = backendColour(backend, this.graph.backends);
      c.fillRect(x, item.y + item.h - 5, width, 3);
      x += width;
    }
  }

  paintMark(item) {
    const { context: c } = this;
    const ring = (colour, width) => {
      c.strokeStyle = colour;
      c.lineWidth = width / Math.min(1, Math.max(this.scale, 0.2));
      c.stroke();
    };
    if (item.moved) ring(MOVED, item.kind === "group" && item.expanded ? 1.2 : 2.4);
    if (this.highlighted && item.kind === "node" && item.partition === this.highlighted) ring(colours.accent, 2);
    if (item === this.selected) ring(colours.accent, 3.2);
  }

  paintEdges(group) {
    const { context: c, window: w, scale } = this;
    c.lineWidth = 1 / Math.min(1, Math.max(scale, 0.25));
    const copies = this.overlay.key === "copies";
    for (const strong of [false, true]) {
      c.beginPath();
      for (const edge of group.edges) {
        if ((edge.crosses && copies) !== strong) continue;
        const [first, last] = [edge.points[0], edge.points[edge.points.length - 1]];
        const x = group.x, y = group.y;
        if (Math.min(first.y, last.y) + y > w.bottom || Math.max(first.y, last.y) + y < w.top) continue;
        c.moveTo(first.x + x, first.y + y);
        if (scale < 0.1) { c.lineTo(last.x + x, last.y + y); continue; }
        for (let i = 1; i < edge.points.length - 1; i++) {
          const p = edge.points[i], q = edge.points[i + 1];
          if (i < edge.points.length - 2) c.quadraticCurveTo(p.x + x, p.y + y, (p.x + q.x) / 2 + x, (p.y + q.y) / 2 + y);
          else c.quadraticCurveTo(p.x + x, p.y + y, q.x + x, q.y + y);
        }
        if (scale > 0.2) {
          c.moveTo(last.x + x - 3.5, last.y + y - 6);
          c.lineTo(last.x + x, last.y + y);
          c.lineTo(last.x + x + 3.5, last.y + y - 6);
        }
      }
      c.strokeStyle = strong ? colours.high : mix(colours.surface, colours.text, 0.45);
      if (strong) c.lineWidth *= 3;
      c.stroke();
    }
    if (!group.parent || scale < 0.12) return;
    c.lineWidth = 1 / Math.min(1, Math.max(scale, 0.25));
    c.strokeStyle = mix(colours.surface, colours.text, 0.25);
    c.setLineDash([3, 3]);
    c.beginPath();
    for (const child of group.entries || []) {
      c.moveTo(child.x + child.w / 2 + 6, group.y + HEADER - 4);
      c.lineTo(child.x + child.w / 2 + 6, child.y);
    }
    for (const child of group.exits || []) {
      c.moveTo(child.x + child.w / 2 + 6, child.y + child.h);
      c.lineTo(child.x + child.w / 2 + 6, group.y + group.h);
    }
    c.stroke();
    c.setLineDash([]);
  }

  at(x, y) {
    const gx = (x - this.tx) / this.scale, gy = (y - this.ty) / this.scale;
    let found = null;
    const walk = (item) => {
      if (gx < item.x || gy < item.y || gx > item.x + item.w || gy > item.y + item.h) return;
      if (item.parent) found = item;
      if (item.kind === "group" && item.expanded) item.children.forEach(walk);
    };
    walk(this.graph.root);
    return found;
  }

  select(item, speak = true) {
    this.selected = item;
    this.highlighted = item?.kind === "node" ? item.partition || null : null;
    this.draw();
    this.page.showDetails(this, item);
    if (speak && item) this.page.said(describe(item));
  }

  events() {
    const { canvas } = this;
    let drag = null;
    canvas.addEventListener("pointerdown", (e) => {
      canvas.setPointerCapture(e.pointerId);
      drag = { x: e.offsetX, y: e.offsetY, moved: false, map: this.overview.go(e.offsetX, e.offsetY) };
    });
    canvas.addEventListener("pointermove", (e) => {
      if (!drag) return this.hover(e);
      if (drag.map) return this.overview.go(e.offsetX, e.offsetY, true);
      const [dx, dy] = [e.offsetX - drag.x, e.offsetY - drag.y];
      if (!drag.moved && Math.hypot(dx, dy) < 4) return;
      drag = { x: e.offsetX, y: e.offsetY, moved: true };
      this.tx += dx; this.ty += dy;
      this.moved = true;
      this.tip.hidden = true;
      this.draw();
    });
    canvas.addEventListener("pointerup", (e) => {
      if (drag && !drag.moved && !drag.map) this.click(e.offsetX, e.offsetY);
      drag = null;
    });
    canvas.addEventListener("pointercancel", () => { drag = null; });
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    canvas.addEventListener("dblclick", (e) => {
      const item = this.at(e.offsetX, e.offsetY);
      if (item?.kind === "group") this.toggle(item);
    });
    canvas.addEventListener("wheel", (e) => {
      e.preventDefault();
      const step = e.deltaMode ? e.deltaY * 30 : e.deltaY;
      if (e.shiftKey) { this.tx -= step; this.draw(); } else this.zoom(Math.exp(-step * 0.0015), e.offsetX, e.offsetY);
    }, { passive: false });
    canvas.addEventListener("keydown", (e) => this.key(e));
    canvas.addEventListener("focus", () => this.page.activate(this));
  }

  hover(e) {
    const item = this.at(e.offsetX, e.offsetY);
    this.canvas.style.cursor = item ? "pointer" : "grab";
    this.tip.hidden = !item || (item.kind === "group" && item.expanded);
    if (this.tip.hidden) return;
    this.tip.textContent = describe(item);
    this.tip.style.left = Math.min(e.offsetX + 14, this.width - 280) + "px";
    this.tip.style.top = e.offsetY + 16 + "px";
  }

  click(x, y) {
    const item = this.at(x, y);
    this.page.activate(this);
    if (item?.kind === "group" && (y - this.ty) / this.scale < item.y + HEADER && (x - this.tx) / this.scale < item.x + 26) this.toggle(item);
    this.select(item);
  }

  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const item = this.selected;
    const go = (next) => { if (next) { this.select(next); this.center(next); } };
    const first = () => this.graph.root.children.find((c) => c.kind !== "input") || this.graph.root.children[0];
    const actions = {
      Enter: () => (item?.kind === "group" ? this.toggle(item) : this.page.focusDetails()),
      " ": () => item?.kind === "group" && this.toggle(item),
      ArrowDown: () => go(item ? this.neighbour(item, "users") : first()),
      ArrowUp: () => go(item ? this.neighbour(item, "sources") : first()),
      ArrowRight: () => go(item ? this.sibling(item, 1) : first()),
      ArrowLeft: () => go(item ? this.sibling(item, -1) : first()),
      Escape: () => (item?.parent?.parent ? go(item.parent) : this.select(null)),
      "+": () => this.zoom(1.25), "=": () => this.zoom(1.25), "-": () => this.zoom(0.8),
      "0": () => this.fitAll(),
      e: () => { expandAll(this.graph.root, true); this.relayout(); this.fit(); },
      c: () => { expandAll(this.graph.root, false); this.relayout(); this.fit(); },
    };
    const action = actions[e.key];
    if (!action) return;
    e.preventDefault();
    action();
  }

  // Return the visible item that an edge leads to, along the first edge that leaves the item.
  neighbour(item, direction) {
    const [from, to] = direction === "users" ? ["a", "b"] : ["b", "a"];
    for (let at = item; at.parent; at = at.parent) {
      const links = at.parent.links ? [...at.parent.links.values()] : [];
      const next = links.find((edge) => edge[from] === at);
      if (next) return next[to];
    }
    return null;
  }

  sibling(item, step) {
    const family = item.parent.children;
    return family[(family.indexOf(item) + step + family.length) % family.length];
  }
}

function contrast(colour) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return r * 0.299 + g * 0.587 + b * 0.114 > 140 ? "#111111" : "#ffffff";
}

function describe(item) {
  if (item.kind === "input") return item.name;
  if (item.kind === "group") {
    const shares = [...item.backends].map(([name, count]) => `${count} ${name}`).join(", ");
    return `module ${item.path || title(item)}: ${shares}, ${percent(item.work)} of the work`;
  }
  return `${item.name}: ${item.op}, ${item.result}, on ${item.backend}${item.source ? ", " + item.source : ""}`;
}
