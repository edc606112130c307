// The model: nodes, the tree of modules that holds them, and the edges. Built once of the data of a method.

const MOST_CHILDREN = 120; // of a group; more are put into groups of consecutive nodes, which keeps layouts small
const MOST_LEVELS = 64; // of modules; forged paths may be deeper than the stack
const PORTABLE = "portable";

// Return the graph of a method: {root, leaves, byName, backends, partitions, method, diagnosis}.
function buildGraph(report, method) {
  const text = (i) => report.texts[i];
  const leaves = method.nodes.map(([name, op, backend, partition, result, source, module, work, time, bytes, inputs, verdicts], index) => ({
    kind: "node", name, op: text(op), backend: text(backend), partition: text(partition), result: text(result),
    source: text(source), module: text(module), work, time, bytes, inputs, index, users: [], sources: [], copied: 0,
    verdicts: verdicts.map(([b, v]) => {
      const [yes, answer, message, remedy] = report.verdicts[v];
      return { backend: text(b), yes: !!yes, answer: text(answer), message: text(message), remedy: text(remedy) };
    }),
  }));
  const byName = new Map(leaves.map((leaf) => [leaf.name, leaf]));
  const ports = new Map(); // inputs of the method
  for (const leaf of leaves) {
    for (const name of leaf.inputs) {
      let source = byName.get(name);
      if (!source && name.startsWith("input ")) {
        source = ports.get(name);
        if (!source) {
          source = { kind: "input", name, op: "input", label: name, backend: "", partition: "", result: "", source: "", module: "", work: 0, time: 0, bytes: 0, inputs: [], index: -1, users: [], sources: [], verdicts: [], copied: 0 };
          ports.set(name, source);
        }
      }
      if (!source) continue;
      leaf.sources.push(source);
      source.users.push(leaf);
      if (source.kind === "node" && source.backend !== leaf.backend) leaf.copied += source.bytes;
    }
  }
  const partitions = new Map(method.partitions.map((p) => [p.name, p]));
  measure(method, leaves, partitions);
  for (const fault of method.faults) fault.items = fault.nodes.map(({ name }) => faultyLeaf(leaves, byName, fault.partition, name)).filter(Boolean);
  for (const fault of method.faults) for (const leaf of fault.items) leaf.fault = [leaf.fault, faultText(fault)].filter(Boolean).join("; ");
  const root = moduleTree([...ports.values(), ...leaves]);
  link(root, [...ports.values(), ...leaves]);
  const backends = [...new Set(leaves.map((leaf) => leaf.backend))].sort((a, b) => (a === PORTABLE) - (b === PORTABLE) || a.localeCompare(b));
  return { root, leaves, byName, backends, partitions, method, diagnosis: report.diagnosis, all: [...ports.values(), ...leaves] };
}

// Return the node of a fault; the debugger names nodes of control flow without the name of their body.
function faultyLeaf(leaves, byName, partition, name) {
  const own = byName.get(name);
  if (own && (!partition || own.partition === partition)) return own;
  return leaves.find((leaf) => leaf.name.endsWith("." + name) && (!partition || leaf.partition === partition));
}

function faultText(fault) {
  return [fault.kind.name, fault.kind.explanation].filter(Boolean).join(": ");
}

// Set the measured time and the accuracy of nodes. The time of a partition is split by the estimated times of its nodes.
function measure(method, leaves, partitions) {
  const times = new Map(method.timings.map((t) => [t.kind === "partition" ? t.what : t.name, t.per_run]));
  const errors = new Map(method.errors.map((row) => [row.node, row.added_db])); // of the debugger
  const totals = new Map();
  for (const leaf of leaves) totals.set(leaf.partition, (totals.get(leaf.partition) || 0) + (leaf.time || leaf.work));
  for (const leaf of leaves) {
    const spent = leaf.partition ? times.get("partition " + leaf.partition) : times.get(leaf.name);
    const total = totals.get(leaf.partition);
    leaf.measured = spent === undefined ? null : leaf.partition ? (total ? (spent * (leaf.time || leaf.work)) / total : 0) : spent;
    const accuracy = partitions.get(leaf.partition)?.accuracy;
    const debugged = errors.get(leaf.partition || leaf.name);
    leaf.sqnr = accuracy ? number(accuracy.sqnr_db) : debugged === undefined ? null : number(debugged);
  }
}

function newGroup(label, path, parent) {
  return { kind: "group", label, path, parent, children: [], expanded: false, dirty: true };
}

// Return the tree of module paths over nodes; groups are in the order of their first node.
function moduleTree(leaves) {
  const root = newGroup("", "", null);
  root.expanded = true;
  const groups = new Map([["", root]]);
  const groupOf = (whole) => {
    const path = whole.split(".", MOST_LEVELS).join(".");
    let group = groups.get(path);
    if (group) return group;
    const dot = path.lastIndexOf(".");
    const parent = groupOf(dot < 0 ? "" : path.slice(0, dot));
    group = newGroup(path.slice(dot + 1), path, parent);
    groups.set(path, group);
    parent.children.push(group);
    return group;
  };
  for (const leaf of leaves) {
    const body = leaf.kind === "node" ? leaf.name.slice(0, Math.max(0, leaf.name.lastIndexOf("."))) : ""; // of control flow
    leaf.parent = groupOf([body, leaf.module].filter(Boolean).join("."));
    leaf.parent.children.push(leaf);
  }
  simplify(root);
  split(root);
  numberChildren(root, 0);
  summarize(root);
  return root;
}

// Replace groups with one child by that child.
function simplify(group) {
  group.children = group.children.map((child) => {
    if (child.kind !== "group") return child;
    simplify(child);
    if (child.children.length > 1) return child;
    const only = child.children[0];
    only.parent = group;
    if (only.kind === "group") only.label = child.label + "." + only.label;
    return only;
  });
}

// Put the children of large groups into groups of consecutive children.
function split(group) {
  for (const child of group.children) if (child.kind === "group") split(child);
  if (group.children.length <= MOST_CHILDREN) return;
  const size = Math.max(40, Math.ceil(group.children.length / MOST_CHILDREN));
  const parts = [];
  for (let at = 0; at < group.children.length; at += size) {
    const members = group.children.slice(at, at + size);
    const part = newGroup(`${title(members[0])} to ${title(members[members.length - 1])}`, group.path, group);
    part.children = members;
    for (const member of members) member.parent = part;
    parts.push(part);
  }
  group.children = parts;
}

function numberChildren(group, depth) {
  group.depth = depth;
  group.children.forEach((child, place) => {
    child.place = place;
    child.depth = depth + 1;
    if (child.kind === "group") numberChildren(child, depth + 1);
  });
}

// Set the sums of a group: nodes, shares by backend, and the values of the overlays.
function summarize(group) {
  Object.assign(group, { leaves: 0, work: 0, time: 0, bytes: 0, copied: 0, measured: null, sqnr: null, backends: new Map() });
  for (const child of group.children) {
    if (child.kind === "group") summarize(child);
    if (child.kind === "input") continue;
    group.leaves += child.leaves ?? 1;
    for (const key of ["work", "time", "bytes", "copied"]) group[key] += child[key];
    if (child.measured != null) group.measured = (group.measured || 0) + child.measured;
    if (child.sqnr != null) group.sqnr = Math.min(group.sqnr ?? Infinity, child.sqnr);
    const shares = child.backends || new Map([[child.backend, 1]]);
    for (const [backend, count] of shares) group.backends.set(backend, (group.backends.get(backend) || 0) + count);
  }
}

// Set the links between the children of each group, and which children have edges that leave the group.
function link(root, leaves) {
  for (const leaf of leaves) {
    for (const user of leaf.users) {
      let [a, b] = [leaf, user];
      const into = [], out = [];
      while (a.depth > b.depth) { out.push(a); a = a.parent; }
      while (b.depth > a.depth) { into.push(b); b = b.parent; }
      while (a.parent !== b.parent) { out.push(a); into.push(b); a = a.parent; b = b.parent; }
      for (const item of out) (item.parent.exits ??= new Set()).add(item);
      for (const item of into) (item.parent.entries ??= new Set()).add(item);
      const links = (a.parent.links ??= new Map());
      const key = a.place + ">" + b.place;
      if (!links.has(key)) links.set(key, { a, b, bytes: 0, crosses: false });
      const edge = links.get(key);
      edge.bytes += leaf.bytes;
      edge.crosses ||= leaf.kind === "node" && leaf.backend !== user.backend;
    }
  }
}

function title(item) {
  if (item.kind === "group") return (/^[0-9]/.test(item.label) && item.path) || item.label || "model";
  if (item.kind === "input") return item.label;
  return item.op.replace(/^aten\./, "").replace(/\.default$/, "");
}

function subtitle(item) {
  if (item.kind === "group") return item.leaves === 1 ? "1 node" : `${item.leaves} nodes`;
  return item.result;
}

// The overlays: a value for each node and group, its text, and the word for it.
const OVERLAYS = [
  { key: "backend", name: "Backend" },
  { key: "work", name: "Work", value: (i) => i.work, text: percent, help: "estimated share of the operations" },
  { key: "time", name: "Time", value: (i) => i.measured, text: (v) => duration(v), help: "measured time per call; a partition's time is split by estimates" },
  { key: "memory", name: "Memory", value: (i) => i.bytes, text: bytes, help: "bytes of the results" },
  { key: "error", name: "Error", value: (i) => i.sqnr, text: decibels, help: "SQNR of the partition or kernel against torch", inverted: true },
  { key: "copies", name: "Copies", value: (i) => i.copied, text: bytes, help: "bytes read from another backend" },
];

function percent(share) {
  const p = 100 * share;
  return p > 0 && p < 0.1 ? "<0.1%" : p.toFixed(p < 10 ? 1 : 0) + "%";
}
function bytes(n) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (n < 1024) return unit === "B" ? `${n} B` : `${n.toFixed(1)} ${unit}`;
    n /= 1024;
  }
  return `${n.toFixed(1)} GiB`;
}
function duration(ns) {
  return ns < 1e3 ? `${ns.toFixed(0)} ns` : ns < 1e6 ? `${(ns / 1e3).toFixed(1)} µs` : `${(ns / 1e6).toFixed(2)} ms`;
}
function decibels(db) {
  return db === Infinity ? "exact" : Number.isFinite(db) ? `${db.toFixed(1)} dB` : "not comparable";
}

// Return a number of the data; infinities and NaN are texts there.
function number(value) {
  return typeof value === "string" ? Number(value.replace("inf", "Infinity")) : value;
}
function figures(accuracy) {
  const top1 = accuracy.top1 == null ? "" : `, top-1 ${number(accuracy.top1).toPrecision(4)}`;
  return `${decibels(number(accuracy.sqnr_db))}, max error ${number(accuracy.max_error).toPrecision(2)} (${number(accuracy.relative_error).toPrecision(2)} relative)${top1}`;
}
