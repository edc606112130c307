// The map: the whole graph in a strip at the right edge of a view, with the visible part framed. A click or a drag moves there.

const MAP_WIDTH = 72, MAP_MARGIN = 12;

class Overview {
  constructor(view) {
    this.view = view;
    this.picture = document.createElement("canvas");
    this.stale = true;
  }

  // Return the place of the strip in the view, or null if most of the graph is visible anyway.
  box() {
    const { graph: { root }, width, height, scale } = this.view;
    if (!root.h || (root.h * scale < height * 1.5 && root.w * scale < width * 1.5)) return null;
    const h = Math.max(60, height - 2 * MAP_MARGIN);
    const w = Math.min(MAP_WIDTH, Math.max(24, (root.w * h) / root.h));
    return { x: width - w - MAP_MARGIN, y: MAP_MARGIN, w, h, sx: w / root.w, sy: h / root.h };
  }

  paint() {
    const box = this.box();
    if (!box) return;
    const { view } = this;
    if (this.stale || this.height !== box.h || this.ratio !== view.ratio) this.draw(box);
    const c = view.context;
    c.setTransform(view.ratio, 0, 0, view.ratio, 0, 0);
    c.drawImage(this.picture, box.x, box.y, box.w, box.h);
    c.lineWidth = 1;
    c.strokeStyle = colours.line;
    c.strokeRect(box.x, box.y, box.w, box.h);
    const left = Math.max(0, -view.tx / view.scale) * box.sx, top = Math.max(0, -view.ty / view.scale) * box.sy;
    const right = Math.min(box.w, ((view.width - view.tx) / view.scale) * box.sx), bottom = Math.min(box.h, ((view.height - view.ty) / view.scale) * box.sy);
    c.strokeStyle = colours.accent;
    c.lineWidth = 2;
    c.strokeRect(box.x + left, box.y + top, Math.max(3, right - left), Math.max(3, bottom - top));
  }

  // Draw the graph once, with the painter of the view at the scale of the strip.
  draw(box) {
    const { view, picture } = this;
    this.stale = false;
    this.height = box.h;
    this.ratio = view.ratio;
    picture.width = box.w * view.ratio;
    picture.height = box.h * view.ratio;
    const before = { context: view.context, scale: view.scale, window: view.window };
    const context = picture.getContext("2d");
    Object.assign(view, { context, scale: box.sy, window: { left: -Infinity, top: -Infinity, right: Infinity, bottom: Infinity } });
    context.fillStyle = colours.surface;
    context.fillRect(0, 0, picture.width, picture.height);
    context.setTransform(view.ratio * box.sx, 0, 0, view.ratio * box.sy, 0, 0);
    view.paintItem(view.graph.root);
    Object.assign(view, before);
  }

  // Move the view to a point of the strip; return if the point is in it.
  go(x, y, dragged) {
    const box = this.box();
    if (!box || (!dragged && (x < box.x || x > box.x + box.w || y < box.y || y > box.y + box.h))) return false;
    const { view } = this;
    view.moved = true;
    view.tx = view.width / 2 - ((x - box.x) / box.sx) * view.scale;
    view.ty = view.height / 2 - ((y - box.y) / box.sy) * view.scale;
    view.draw();
    return true;
  }
}
