// Runs before the page: keeps what each table of canvas draws as its headings, and the room that it has for them.
(() => {
  const HEADER_HEIGHT = 36
  const clips = new WeakMap()
  const drawn = new Map()
  const context = CanvasRenderingContext2D.prototype
  const { rect, fillText } = context
  context.rect = function (...box) {
    clips.set(this, box)
    return rect.apply(this, box)
  }
  context.fillText = function (text, x, y, ...rest) {
    const clip = clips.get(this)
    const table = y < HEADER_HEIGHT && text && this.canvas.closest("[data-testid=stDataFrame]")
    if (table && clip) {
      if (!drawn.has(table)) drawn.set(table, new Map())
      drawn.get(table).set(text, { right: x + this.measureText(text).width, end: clip[0] + clip[2] })
    }
    return fillText.call(this, text, x, y, ...rest)
  }
  // Headings that their column cuts; with `whole`, also those that the right edge of the table cuts.
  window.cutHeadings = (whole) =>
    [...drawn].filter(([table]) => table.isConnected).flatMap(([table, headings]) =>
      [...headings].filter(([, { right, end }]) => right > end || (whole && right > table.clientWidth))
        .map(([text, { right, end }]) => `heading is cut: "${text}" (${Math.round(right - Math.min(end, table.clientWidth))} px too wide)`))
  window.forgetHeadings = () => drawn.clear()
})()
