// The accuracy of quantized layers: the plot along the depth, and the table.

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// The error of quantized layers: a plot along the depth, and a table of the noisiest.
function layerPanel(view) {
  const layers = view.graph.method.layers.map((l, at) => ({ ...l, at, added: number(l.added_db), total: number(l.total_db) }));
  const order = (l) => (Number.isNaN(l.added) ? Infinity : l.added);
  const noisiest = [...layers].sort((a, b) => (order(a) > order(b)) - (order(a) < order(b))).slice(0, 200);
  const caption = `The noisiest of ${layers.length} quantized layers first`;
  return [
    el("h2", {}, "SQNR of quantized layers along the depth"),
    el("p", { class: "muted" }, "Added: the error of a layer on float inputs. Total: with the error of the layers before it. Higher is better. A layer far below its neighbours in \u201cadded\u201d is the one to keep in float."),
    layerPlot(layers, `plot-${view.page.views.indexOf(view)}`),
    table(["Layer", "Place", "Depth", "Added", "Total"], noisiest.map((l) => {
      const node = layerNode(view, l);
      return [node ? nodeLink(view, node, l.node) : l.node, l.place, l.at + 1, decibels(l.added), decibels(l.total)];
    }), caption),
  ];
}

// Return the node of a layer: of its name and module, or else the only node of its module; lowering changes names.
function layerNode(view, layer) {
  const fits = (leaf) => layer.place.startsWith(`${leaf.module || "no module"}, `);
  const own = view.graph.byName.get(layer.node);
  if (own && fits(own)) return own;
  const members = view.graph.leaves.filter((leaf) => leaf.module && fits(leaf) && !leaf.op.startsWith("quantized_decomposed."));
  return members.length === 1 ? members[0] : null;
}

// Return the plot; values beyond its scale, such as exact layers, are at its border.
function layerPlot(layers, id) {
  const [width, height, left, right, top, bottom] = [800, 240, 52, 12, 34, 36];
  const finite = layers.flatMap((l) => [l.added, l.total]).filter(Number.isFinite);
  const floor = Math.max(-40, finite.reduce((a, b) => Math.min(a, b), 0));
  const ceiling = Math.min(200, finite.reduce((a, b) => Math.max(a, b), 60));
  const x = (at) => left + ((at + 0.5) / layers.length) * (width - left - right);
  const y = (db) => top + (1 - (Math.min(ceiling, Math.max(floor, db)) - floor) / (ceiling - floor)) * (height - top - bottom);
  const step = ceiling - floor > 120 ? 40 : 20;
  const ticks = [];
  for (let db = Math.ceil(floor / step) * step; db <= ceiling; db += step) ticks.push(db);
  const series = (key) => {
    const known = layers.filter((l) => !Number.isNaN(l[key]));
    const line = svg("polyline", { class: key, points: known.map((l) => `${x(l.at).toFixed(1)},${y(l[key]).toFixed(1)}`).join(" ") });
    if (layers.length > 300) return [line];
    const mark = (l) => (key === "added" ? svg("circle", { class: key, cx: x(l.at), cy: y(l[key]), r: 3.5 }) : svg("rect", { class: key, x: x(l.at) - 3, y: y(l[key]) - 3, width: 6, height: 6 }));
    return [line, ...known.map((l) => {
      const point = mark(l);
      point.append(svg("title", {}, `${l.node} (${l.place}): added ${decibels(l.added)}, total ${decibels(l.total)}`));
      return point;
    })];
  };
  const legend = (at, key, words) => [svg("line", { class: key, x1: at, x2: at + 26, y1: 14, y2: 14 }), svg("text", { x: at + 32, y: 18 }, words)];
  return svg("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-labelledby": `${id}-title`, "aria-describedby": `${id}-text` },
    svg("title", { id: `${id}-title` }, "SQNR of quantized layers along the depth"),
    svg("desc", { id: `${id}-text` }, `Two lines over ${layers.length} layers in the order of the program: the error that each layer adds, and the total. The table below has the figures.`),
    ...ticks.flatMap((db) => [svg("line", { class: "grid", x1: left, x2: width - right, y1: y(db), y2: y(db) }), svg("text", { x: left - 6, y: y(db) + 4, "text-anchor": "end" }, `${db} dB`)]),
    ...legend(left, "added", "added by the layer"), ...legend(left + 190, "total", "total"),
    ...series("added"), ...series("total"),
    svg("text", { x: left, y: height - 8 }, "first layer"), svg("text", { x: width - right, y: height - 8, "text-anchor": "end" }, `layer ${layers.length}`));
}
