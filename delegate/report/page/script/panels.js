// The panels beside the graph: details of a node, outline, memory, time, placement, accuracy, changes, notes.

function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((c) => c !== null && c !== undefined && c !== ""));
  return element;
}

function table(header, rows, caption) {
  return el("div", { class: "scroll", tabindex: "0" }, el("table", {},
    caption ? el("caption", {}, caption) : "",
    el("thead", {}, el("tr", {}, ...header.map((h) => el("th", { scope: "col" }, h)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map(cellOf))))));
}

function cellOf(value) {
  if (value instanceof Node) return el("td", {}, value);
  const text = String(value ?? "");
  return el("td", { class: text.length < 24 ? "short" : null }, text);
}

function facts(rows) {
  return el("dl", {}, ...rows.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function swatch(name, backends) {
  return el("span", { class: "backend" }, el("i", { style: `background:${backendColour(name, backends)}` }), name || "input");
}

function nodeLink(view, item, text) {
  return el("button", { class: "link", type: "button", onclick: () => { if (view.page.side.hidden) view.page.openTab("graph"); view.reveal(item); view.select(item); } }, text || item.name);
}

function details(view, item) {
  if (!item) return [el("p", { class: "muted" }, "Select a node: click it, search for it with /, or follow edges with the arrow keys. Double-click or Enter expands a group.")];
  if (item.kind === "input") return [el("h2", {}, item.name), facts([["Read by", links(view, item.users)]])];
  return item.kind === "group" ? groupDetails(view, item) : nodeDetails(view, item);
}

function links(view, items) {
  if (!items.length) return null;
  const list = el("span", { class: "links" });
  for (const item of items.slice(0, 30)) list.append(nodeLink(view, item), " ");
  if (items.length > 30) list.append(`and ${items.length - 30} more`);
  return list;
}

function nodeDetails(view, node) {
  const partition = view.graph.partitions.get(node.partition);
  const rows = node.verdicts.map((v) => [swatch(v.backend, view.graph.backends), el("span", { class: v.yes ? "yes" : "no" }, v.answer),
    el("span", {}, v.message, v.remedy ? el("span", { class: "remedy" }, `Remedy: ${v.remedy}`) : "")]);
  return [
    el("h2", {}, node.name),
    facts([
      ["Operator", el("code", {}, node.op)], ["Result", el("code", {}, node.result)],
      ["Backend", swatch(node.backend, view.graph.backends)], ["Partition", node.partition],
      ["Source", node.source && el("code", {}, node.source)], ["Module", node.module && el("code", {}, node.module)],
      ["Work", percent(node.work)], ["Time, estimated", node.time ? percent(node.time) : ""],
      ["Time, measured", node.measured != null ? duration(node.measured) + (node.partition ? " (share of its partition)" : "") : ""],
      ["Memory", node.bytes ? bytes(node.bytes) : ""], ["From other backends", node.copied ? bytes(node.copied) : ""],
      ["Error", node.sqnr != null ? decibels(node.sqnr) + (node.partition ? " (its partition)" : "") : ""],
      ["Fault", node.fault || ""],
      ["In the other report", node.moved || ""],
      ["Reads", links(view, node.sources)],
      ["Constants", node.inputs.filter((n) => n.startsWith("constant ") || n.startsWith("state ")).join(", ")],
      ["Read by", links(view, node.users)],
    ]),
    el("h3", {}, "Verdicts"),
    rows.length ? table(["Backend", "Verdict", "Reason"], rows) : el("p", { class: "muted" }, "No backend was asked."),
    ...(partition ? partitionDetails(view, partition) : []),
  ];
}

function partitionDetails(view, p) {
  const nodes = view.graph.leaves.filter((leaf) => leaf.partition === p.name);
  return [
    el("h3", {}, `Partition ${p.name}`),
    facts([
      ["Nodes", String(p.nodes)], ["Work", percent(p.work)], ["In", bytes(p.bytes_in)], ["Out", bytes(p.bytes_out)],
      ["Device memory", p.space && `${p.space}: ${bytes(p.copied_in)} from the host, ${bytes(p.copied_out)} to it`],
      ["Accuracy", p.accuracy && figures(p.accuracy)], ["Notes", p.notes.join("; ")], ["All nodes", links(view, nodes)],
    ]),
  ];
}

function groupDetails(view, group) {
  const refusals = new Map();
  const ops = new Map();
  const walk = (item) => {
    if (item.kind === "group") return item.children.forEach(walk);
    if (item.kind === "input") return;
    ops.set(item.op, (ops.get(item.op) || 0) + 1);
    for (const v of item.verdicts) {
      if (v.backend === item.backend) break;
      if (v.yes) continue;
      const key = `${v.backend}: ${v.answer}`;
      if (!refusals.has(key)) refusals.set(key, { count: 0, message: v.message, node: item });
      refusals.get(key).count++;
    }
  };
  walk(group);
  return [
    el("h2", {}, title(group)),
    facts([
      ["Module", el("code", {}, group.path || "the model")], ["Nodes", String(group.leaves)],
      ["Work", percent(group.work)], ["Time, estimated", group.time ? percent(group.time) : ""],
      ["Time, measured", group.measured != null ? duration(group.measured) : ""],
      ["Results", bytes(group.bytes)], ["From other backends", group.copied ? bytes(group.copied) : ""],
      ["Least SQNR", group.sqnr != null ? decibels(group.sqnr) : ""],
    ]),
    el("p", {}, el("button", { type: "button", onclick: () => view.toggle(group) }, group.expanded ? "Collapse" : "Expand")),
    table(["Backend", "Nodes"], [...group.backends].map(([name, count]) => [swatch(name, view.graph.backends), count])),
    table(["Operator", "Nodes"], [...ops].sort((a, b) => b[1] - a[1]).slice(0, 25)),
    refusals.size ? table(["Not on", "Nodes", "Such as"], [...refusals].map(([key, r]) => [key, r.count, el("span", {}, nodeLink(view, r.node), " ", r.message)]), "Refusals") : "",
  ];
}

// The outline: a tree for keyboards and screen readers, with the content of the graph.
function outline(view) {
  const tree = el("ul", { role: "tree", "aria-label": "Modules and nodes" });
  const row = (item, level) => {
    const group = item.kind === "group";
    const words = group ? `${subtitle(item)}, ${percent(item.work)} of the work` : item.kind === "input" ? "" : `${item.name}, ${item.result}`;
    const line = el("span", { class: "row" }, el("span", { class: "twist", "aria-hidden": "true" }, group ? "▸" : ""), el("b", {}, title(item)), el("span", { class: "muted" }, words));
    if (item.kind === "node") line.append(swatch(item.backend, view.graph.backends));
    else if (group) line.append(...[...item.backends.keys()].map((name) => swatch(name, view.graph.backends)));
    const li = el("li", { role: "treeitem", "aria-level": level, tabindex: "-1", "aria-selected": "false" }, line);
    if (group) li.setAttribute("aria-expanded", "false");
    li.item = item;
    return li;
  };
  const open = (li, wanted) => {
    if (li.item.kind !== "group") return;
    li.setAttribute("aria-expanded", String(wanted));
    li.querySelector(".twist").textContent = wanted ? "▾" : "▸";
    let list = li.querySelector(":scope > ul");
    if (wanted && !list) {
      list = el("ul", { role: "group" }, ...li.item.children.map((child) => row(child, Number(li.getAttribute("aria-level")) + 1)));
      li.append(list);
    }
    if (list) list.hidden = !wanted;
  };
  const focus = (li) => {
    if (!li) return;
    tree.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
    tree.querySelector('[aria-selected="true"]')?.setAttribute("aria-selected", "false");
    li.setAttribute("tabindex", "0");
    li.setAttribute("aria-selected", "true");
    li.focus();
    view.select(li.item, false);
  };
  const shown = () => [...tree.querySelectorAll('[role="treeitem"]')].filter((li) => !li.parentElement.closest("ul[hidden]") && !li.closest("ul[hidden]"));
  tree.addEventListener("click", (e) => {
    const li = e.target.closest('[role="treeitem"]');
    if (!li) return;
    if (li.item.kind === "group") open(li, li.getAttribute("aria-expanded") !== "true");
    focus(li);
  });
  tree.addEventListener("keydown", (e) => {
    const li = e.target.closest('[role="treeitem"]');
    const items = shown();
    const at = items.indexOf(li);
    const isOpen = li.getAttribute("aria-expanded") === "true";
    const actions = {
      ArrowDown: () => focus(items[at + 1]), ArrowUp: () => focus(items[at - 1]), Home: () => focus(items[0]), End: () => focus(items[items.length - 1]),
      ArrowRight: () => (isOpen ? focus(items[at + 1]) : open(li, true)),
      ArrowLeft: () => (isOpen ? open(li, false) : focus(li.parentElement.closest('[role="treeitem"]'))),
      Enter: () => open(li, !isOpen), " ": () => open(li, !isOpen),
    };
    if (!actions[e.key]) return;
    e.preventDefault();
    actions[e.key]();
  });
  tree.append(...view.graph.root.children.map((child) => row(child, 1)));
  tree.firstElementChild?.setAttribute("tabindex", "0");
  return tree;
}

// A canvas of rectangles with a line of text about the one under the pointer. `paint` gets the context and returns the rectangles.
function chart(height, label, paint) {
  const canvas = el("canvas", { role: "img", "aria-label": label, style: `height:${height}px` });
  const line = el("p", { class: "muted hover" }, "Point at a block.");
  let blocks = [];
  const draw = () => {
    const width = canvas.clientWidth;
    if (!width) return;
    const ratio = devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    blocks = paint(context, width, height);
  };
  const find = (e) => blocks.findLast((b) => e.offsetX >= b.x && e.offsetX <= b.x + b.w && e.offsetY >= b.y && e.offsetY <= b.y + b.h);
  canvas.addEventListener("pointermove", (e) => { line.textContent = find(e)?.text || "Point at a block."; });
  canvas.addEventListener("click", (e) => find(e)?.action?.());
  new ResizeObserver(draw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTimeout(draw));
  return el("div", { class: "chart" }, canvas, line);
}

function memoryPanel(view) {
  const memory = view.graph.method.memory;
  if (!memory) return [el("p", {}, "The memory is known only of compiled programs: give a program file.")];
  const parts = [];
  memory.spaces.slice(0, Math.max(memory.arenas.length, 1)).forEach((space, number) => {
    const blocks = memory.blocks.filter((b) => b[1] === number);
    const size = memory.arenas[number] ?? 0;
    const words = size < 0 ? "planned per shape, when the sizes are known" : bytes(size);
    parts.push(el("h2", {}, `Arena of ${space}: ${words}`));
    if (!blocks.length) return;
    const live = new Float64Array(memory.steps + 2);
    for (const [, , , n, start, end] of blocks) { live[start] += n; live[end + 1] -= n; }
    let sum = 0, peak = 0, step = 0;
    for (let i = 0; i <= memory.steps; i++) { sum += live[i]; if (sum > peak) { peak = sum; step = i; } }
    parts.push(el("p", {}, `Peak: ${bytes(peak)} alive at step ${step} of ${memory.steps}; the arena is ${percent(size ? size / peak : 1)} of that. Time goes to the right, the place in the arena upwards.`));
    parts.push(chart(340, `Blocks of the arena of ${space} over time; the table below lists them`, (c, width, height) => {
      c.clearRect(0, 0, width, height);
      const boxes = blocks.map(([name, , offset, n, start, end]) => {
        const item = view.graph.byName.get(name);
        const box = { x: (start / memory.steps) * width, w: Math.max(1, ((end - start + 1) / memory.steps) * width), h: Math.max(1, (n / size) * (height - 4)), text: `${name}: ${bytes(n)} at ${offset}, steps ${start} to ${end}` };
        box.y = height - 2 - ((offset + n) / size) * (height - 4);
        if (item) box.action = () => { view.page.openTab("graph"); view.reveal(item); view.select(item); };
        c.fillStyle = mix(colours.low, colours.high, Math.sqrt(n / size));
        c.fillRect(box.x, box.y, box.w, box.h);
        if (box.w > 3 && box.h > 3) { c.strokeStyle = colours.surface; c.lineWidth = 0.5; c.strokeRect(box.x, box.y, box.w, box.h); }
        return box;
      });
      c.fillStyle = colours.accent;
      c.fillRect((step / memory.steps) * width, 0, 1, height);
      return boxes;
    }));
    parts.push(table(["Value", "Bytes", "Offset", "First step", "Last step"], blocks.slice(0, 20).map(([name, , offset, n, start, end]) => [name, bytes(n), offset, start, end]), "The largest values"));
  });
  if (memory.peaks.length) parts.push(table(["Sizes", "Alive at the peak"], memory.peaks.map(([sizes, n]) => [sizes, bytes(n)]), "Dynamic sizes, all small, in the middle, or all large"));
  const sum = (rows) => rows.reduce((total, [, n]) => total + n, 0);
  if (memory.constants.length) parts.push(table(["Constant", "Bytes"], memory.constants.slice(0, 20).map(([name, n]) => [name, bytes(n)]), `Constants of kernels: ${memory.constants.length}, ${bytes(sum(memory.constants))}`));
  if (memory.delegates.length) parts.push(table(["Partition", "Backend", "Compiled model", "Packed weights", "Of these shared with others"],
    memory.delegates.slice(0, 30).map(([name, backend, blob, weights, shared]) => [name, swatch(backend, view.graph.backends), bytes(blob), bytes(weights), bytes(shared)]),
    `Blobs of partitions, with their weights: ${bytes(memory.delegates.reduce((total, [, , blob, weights]) => total + blob + weights, 0))}; what a library allocates itself is unknown`));
  return parts;
}

function timePanel(view) {
  const { root, method } = view.graph;
  const measured = root.measured != null;
  const value = (item) => (measured ? item.measured : item.time || item.work) || 0;
  const show = (v) => (measured ? duration(v) : percent(v));
  const total = value(root);
  const parts = [el("h2", {}, measured ? "Measured time by module" : "Estimated time by module"),
    el("p", { class: "muted" }, measured ? "The time of a partition is split among its nodes by their estimates." : "Nothing was measured: `delegate report FILE --repeat 20` runs the program.")];
  const depth = (item) => (item.kind === "group" ? 1 + Math.max(0, ...item.children.map(depth)) : 1);
  const levels = Math.min(depth(root), 14);
  if (total) {
    parts.push(chart(levels * 24 + 4, "Time by module as nested bars; the Outline tab has the same", (c, width) => {
      c.clearRect(0, 0, width, levels * 24 + 4);
      c.textBaseline = "middle";
      c.font = `11px system-ui, sans-serif`;
      const boxes = [];
      const paint = (item, x, level) => {
        const w = (value(item) / total) * width;
        if (w < 0.5 || level >= levels) return;
        const box = { x, y: level * 24 + 2, w, h: 22, text: `${item.kind === "group" ? item.path || "model" : item.name}: ${show(value(item))}`, action: () => { view.page.openTab("graph"); if (item.parent) view.reveal(item); view.select(item.parent ? item : null); } };
        c.fillStyle = item.kind === "node" ? mix(colours.raised, backendColour(item.backend, view.graph.backends), 0.45) : mix(colours.low, colours.high, Math.sqrt(value(item) / total) * 0.7);
        c.fillRect(box.x, box.y, Math.max(0.5, w - 0.7), box.h);
        if (w > 40) {
          c.fillStyle = item.kind === "node" ? colours.text : contrast(c.fillStyle);
          c.save(); c.beginPath(); c.rect(x, box.y, w - 3, 22); c.clip();
          c.fillText(title(item), x + 4, box.y + 12);
          c.restore();
        }
        boxes.push(box);
        let at = x;
        for (const child of item.children || []) { paint(child, at, level + 1); at += (value(child) / total) * width; }
      };
      paint(root, 0, 0);
      return boxes;
    }));
  }
  if (method.timings.length) {
    const all = method.timings.filter((t) => t.kind !== "control flow").reduce((sum, t) => sum + t.per_run, 0);
    const row = (t, indent) => [indent + t.what, t.name, percent(t.per_run / all), duration(t.per_run), duration(t.median), duration(t.minimum), t.count, t.module, t.source];
    const slowest = [...method.timings].sort((a, b) => b.per_run - a.per_run).slice(0, 200);
    const rows = slowest.flatMap((t) => [row(t, ""), ...(t.operators || []).slice(0, 200).map((o) => row(o, "\u2003"))]);
    parts.push(table(["Instruction", "Value", "Share", "Mean", "Median", "Least", "Runs", "Module", "Source"], rows, "Instructions, the slowest first; the operators of a vendor library follow their partition"));
  } else {
    const rows = [...view.graph.leaves].sort((a, b) => value(b) - value(a)).slice(0, 30);
    parts.push(table(["Node", "Operator", "Backend", "Estimate", "Source"], rows.map((n) => [nodeLink(view, n), n.op, n.backend, show(value(n)), n.source]), "The most costly nodes"));
  }
  return parts;
}

function placementPanel(view) {
  const parts = [];
  const shares = new Map();
  for (const leaf of view.graph.leaves) {
    const row = shares.get(leaf.backend) || { nodes: 0, work: 0 };
    shares.set(leaf.backend, { nodes: row.nodes + 1, work: row.work + leaf.work });
  }
  parts.push(table(["Backend", "Nodes", "Work"], [...shares].map(([name, row]) => [swatch(name, view.graph.backends), row.nodes, percent(row.work)]), "Placement"));
  const partitions = view.graph.method.partitions;
  parts.push(table(["Partition", "Backend", "Nodes", "Work", "In", "Out", "Copied", "Notes"], partitions.map((p) => [p.name, swatch(p.backend, view.graph.backends), p.nodes, percent(p.work), bytes(p.bytes_in), bytes(p.bytes_out), p.space ? bytes(p.copied_in + p.copied_out) : "", p.notes.join("; ")]), "Partitions"));
  for (const placement of view.graph.method.placements) {
    const time = placement.objective === "latency";
    const cost = (v) => (v == null ? "" : time ? duration(number(v) * 1e9) : bytes(number(v)));
    const best = placement.plans.find((p) => p.name === placement.chosen);
    const runnerUp = placement.plans.filter((p) => p.against).sort((a, b) => number(a.against.ratio) - number(b.against.ratio))[0];
    parts.push(el("h2", {}, `${placement.chosen} is chosen by ${placement.objective}`));
    if (runnerUp) parts.push(el("p", {}, `Winner: ${best.name}, ${cost(best.cost)}. Runner-up: ${runnerUp.name}, ${cost(runnerUp.cost)}, ${ratio(runnerUp.against)} times the winner.`));
    parts.push(table(["Plan", "Partitions", "Cost", "Ratio to the winner", "", "SQNR", "Rounds", ""], placement.plans.map((p) => [p.name, p.partitions, cost(p.cost), p.name === placement.chosen ? "winner" : ratio(p.against), bar(p.against), p.sqnr_db == null ? "" : decibels(number(p.sqnr_db)), p.rounds || "", p.why]), "Plans"));
    const front = plansOnFront(placement.plans);
    if (front.length > 1) parts.push(table(["Plan", "Cost", "SQNR"], front.map((p) => [p.name, cost(p.cost), decibels(number(p.sqnr_db))]), "No other plan costs less and has a smaller error"));
    if (placement.not_tried.length) parts.push(el("h3", {}, "Not tried"), el("ul", {}, ...placement.not_tried.map((t) => el("li", {}, t))));
    for (const text of [placement.machine && `Measured on ${placement.machine}`, placement.busy && `The machine was busy: ${placement.busy}`]) if (text) parts.push(el("p", {}, text));
  }
  return parts;
}

// The plans that no other one beats in both cost and SQNR; differences above 100 dB are rounding in float32.
function plansOnFront(plans) {
  const compared = plans.filter((p) => p.cost != null && p.sqnr_db != null && !p.why).sort((a, b) => number(a.cost) - number(b.cost));
  const front = [];
  let least = -Infinity;
  for (const plan of compared) {
    const quality = Math.min(number(plan.sqnr_db), 100);
    if (quality > least) {
      front.push(plan);
      least = quality;
    }
  }
  return front;
}

function ratio(against) {
  return against ? `${number(against.ratio).toFixed(3)} [${[against.low, against.high].map((v) => (Number.isFinite(number(v)) ? number(v).toFixed(3) : "∞")).join(", ")}]` : "";
}

// An interval on a scale from 0.5 to 2, with a line at 1.
function bar(against) {
  if (!against) return "";
  const at = (v) => 50 + 50 * Math.max(-1, Math.min(1, Math.log2(number(v) || 0.5)));
  const [low, high] = [at(against.low), at(against.high)];
  return el("span", { class: "interval", "aria-hidden": "true" }, el("i", { style: `left:${low}%;width:${Math.max(1, high - low)}%` }), el("b", {}));
}

function accuracyPanel(view) {
  const { accuracy, partitions } = view.graph.method;
  const parts = debugPanel(view);
  if (view.graph.method.layers.length) parts.push(...layerPanel(view));
  if (!accuracy.length) return [...parts, el("p", {}, "The program was not verified: `delegate lower --verify`, or `verify=` of `to_backend`.")];
  parts.push(table(["Reference", "Result"], accuracy.map((a) => [a.reference, [a.figures && figures(a.figures), a.why].filter(Boolean).join("; ")]), "The method"));
  const rows = partitions.filter((p) => p.accuracy);
  if (!rows.length) return parts;
  const value = (p) => number(p.accuracy.sqnr_db);
  const top = Math.max(60, ...rows.map(value).filter(Number.isFinite));
  parts.push(el("h2", {}, "SQNR along the depth"), chart(200, "SQNR of each partition in the order of the method; the table below lists them", (c, width, height) => {
    c.clearRect(0, 0, width, height);
    const step = Math.min(80, width / rows.length);
    return rows.map((p, i) => {
      const db = value(p), h = Math.max(2, (Math.min(top, Math.max(0, Number.isNaN(db) ? 0 : db)) / top) * (height - 20));
      const box = { x: i * step, y: height - h, w: Math.max(1, step - 3), h, text: `${p.name}: ${decibels(db)}` };
      c.fillStyle = mix(colours.low, colours.high, 1 - Math.min(1, Math.max(0, db / 80)));
      c.fillRect(box.x, box.y, box.w, box.h);
      return box;
    });
  }));
  parts.push(table(["Partition", "Backend", "Error"], [...rows].sort((a, b) => value(a) - value(b)).map((p) => [p.name, p.backend, figures(p.accuracy)]), "Partitions, the least accurate first"));
  return parts;
}
