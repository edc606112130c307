// The result of the debugger: the faults with their nodes, and the error of each instruction.

function debugPanel(view) {
  const { diagnosis, method: { faults, errors } } = view.graph;
  if (!diagnosis) return [];
  const operators = (f) => {
    const list = el("span", { class: "links" });
    for (const { name, operator } of f.nodes) {
      const item = f.items.find((leaf) => leaf.name === name || leaf.name.endsWith("." + name));
      list.append(item ? nodeLink(view, item, name) : name, ` ${operator} `);
    }
    return list;
  };
  const parts = [el("h2", {}, faults.length ? "Faults that the debugger found" : "The debugger found no fault in this method")];
  if (faults.length) parts.push(table(["Kind", "Operators", "On", "Partition", "Error by themselves", "Remedy"],
    faults.map((f) => [faultText(f), operators(f), f.place, f.partition, f.figures && figures(f.figures), f.remedy.length ? el("pre", {}, f.remedy.join("\n")) : ""]), "The smallest sets of operators that are wrong"));
  parts.push(...diagnosis.sentences.map((text) => el("p", {}, text)));
  if (errors.length) {
    const db = (v) => (v == null ? "unknown" : decibels(number(v)));
    const noise = ({ added_db }) => (Number.isNaN(number(added_db)) ? Infinity : number(added_db));
    const rows = [...errors].sort((a, b) => (noise(a) > noise(b)) - (noise(a) < noise(b))).slice(0, 200);
    parts.push(table(["Partition or node", "Place", "Added", "Total"], rows.map(({ node: name, place, added_db: added, total_db: total }) => {
      const item = view.graph.byName.get(name);
      return [item ? nodeLink(view, item, name) : name, place, db(added), db(total)];
    }), "The error of each partition and kernel, the noisiest first"));
  }
  return parts;
}
