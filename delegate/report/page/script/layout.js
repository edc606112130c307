// The layout: dagre places the children of each expanded group, from the inside out. Only changed groups are placed again.

const FONT = 12, SMALL = 10.5, HEIGHT = 42, PAD = 14, HEADER = 30;
const measuring = document.createElement("canvas").getContext("2d");
const widths = new Map();

function textWidth(text, size) {
  const key = size + text;
  let width = widths.get(key);
  if (width === undefined) {
    measuring.font = `${size}px system-ui, sans-serif`;
    width = measuring.measureText(text).width;
    widths.set(key, width);
  }
  return width;
}

function clip(text, most = 34) {
  return text.length > most ? text.slice(0, most - 1) + "…" : text;
}

// Set the width and the height of an item, and for an expanded group the places of its children and edges.
function layout(item) {
  if (item.kind !== "group" || !item.expanded) {
    item.w = Math.max(64, textWidth(clip(title(item)), FONT) + 26, textWidth(clip(subtitle(item)), SMALL) + 26);
    item.h = HEIGHT;
    return;
  }
  if (!item.dirty) return;
  item.children.forEach(layout);
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "TB", nodesep: 16, ranksep: 30, edgesep: 8, ranker: item.children.length > 80 ? "longest-path" : "network-simplex" });
  graph.setDefaultEdgeLabel(() => ({}));
  item.children.forEach((child, place) => graph.setNode(String(place), { width: child.w, height: child.h }));
  for (const { a, b } of (item.links || new Map()).values()) graph.setEdge(String(a.place), String(b.place));
  dagre.layout(graph);
  const inner = item.parent ? PAD : 0, top = item.parent ? HEADER : 0;
  let [left, right, upper, lower] = [Infinity, -Infinity, Infinity, -Infinity];
  const boxes = item.children.map((child, place) => graph.node(String(place)));
  boxes.forEach((box) => {
    left = Math.min(left, box.x - box.width / 2); right = Math.max(right, box.x + box.width / 2);
    upper = Math.min(upper, box.y - box.height / 2); lower = Math.max(lower, box.y + box.height / 2);
  });
  item.edges = [...(item.links || new Map()).values()].map((edge) => {
    const points = graph.edge(String(edge.a.place), String(edge.b.place)).points;
    for (const p of points) { left = Math.min(left, p.x); right = Math.max(right, p.x); }
    return { ...edge, points };
  });
  const dx = inner - left, dy = top + (item.parent ? 8 : 0) - upper;
  item.children.forEach((child, place) => {
    child.rx = boxes[place].x - child.w / 2 + dx;
    child.ry = boxes[place].y - child.h / 2 + dy;
  });
  for (const edge of item.edges) edge.points = edge.points.map((p) => ({ x: p.x + dx, y: p.y + dy }));
  const header = item.parent ? textWidth(clip(title(item), 60), FONT) + 60 : 0;
  item.w = Math.max(right - left + 2 * inner, header);
  item.h = lower - upper + top + (item.parent ? 8 + PAD : 0);
  item.dirty = false;
}

// Set the places of all visible items in the coordinates of the graph.
function place(item, x, y) {
  item.x = x;
  item.y = y;
  if (item.kind !== "group" || !item.expanded) return;
  for (const child of item.children) place(child, x + child.rx, y + child.ry);
}

function markDirty(item) {
  for (let at = item; at; at = at.parent) at.dirty = true;
}

function expand(group, open) {
  group.expanded = open;
  markDirty(group);
}

// Expand the largest groups while few items are visible, so that the first picture shows the structure.
function expandSome(root, most) {
  let visible = root.children.length;
  let open = [root];
  while (open.length) {
    const next = open.flatMap((g) => g.children.filter((c) => c.kind === "group")).sort((a, b) => a.children.length - b.children.length);
    open = [];
    for (const group of next) {
      if (visible + group.children.length > most) continue;
      visible += group.children.length;
      group.expanded = true;
      open.push(group);
    }
  }
}

function expandAll(group, open) {
  for (const child of group.children) {
    if (child.kind !== "group") continue;
    child.expanded = open;
    child.dirty = true;
    expandAll(child, open);
  }
  group.dirty = true;
}
