// The attention mask of a packed row as blocks: key k is visible to query q iff k <= q < end[k]. A tree node
// with tokens [s, e) whose subtree ends at E gives one causal triangle and one rectangle below it, so a row of
// 32k tokens is a few thousand shapes and no T×T array is ever made.

export default function (component) {
  const { data, parentElement } = component
  const frame = parentElement.querySelector(".frame")
  const theme = themeOf(parentElement)
  const state = stateOf(parentElement, () => ({ uid: null }))
  if (state.uid === data.uid && state.sent === data.nodes.start) {
    state.theme = theme
    state.data = data
    state.draw()
    return state.cleanup
  }
  state.cleanup?.()
  const T = data.n_tokens
  Object.assign(state, {
    uid: data.uid, sent: data.nodes.start, data, theme, T,
    start: decode(data.nodes.start, Int32Array) ?? new Int32Array(),
    stop: decode(data.nodes.stop, Int32Array) ?? new Int32Array(),
    end: decode(data.nodes.end, Int32Array) ?? new Int32Array(),
    owners: decode(data.nodes.n_owners, Int32Array) ?? new Int32Array(),
    ids: decode(data.ids, Int32Array),
    vocab: new Map(data.vocab ?? []),
    view: { x: 0, y: 0, span: Math.max(T, 1) },
  })
  const bar = element("div", "bar")
  const fit = element("button", "", "Fit")
  const zoomIn = element("button", "", "+")
  const zoomOut = element("button", "", "−")
  zoomIn.title = "Zoom in (wheel)"
  zoomOut.title = "Zoom out (wheel)"
  const where = element("span", "mono faint")
  const legend = element("span", "legend faint")
  bar.append(fit, zoomIn, zoomOut, legend, element("span", "grow"), element("span", "faint", "wheel zooms, drag pans"), where)
  const body = element("div", "body maskbody")
  const canvas = element("canvas")
  canvas.tabIndex = 0
  canvas.setAttribute("role", "img")
  canvas.setAttribute("aria-label", `Attention mask of ${T} packed tokens`)
  const tip = element("div", "tip")
  tip.hidden = true
  const status = element("div", "status faint")
  body.append(canvas)
  frame.replaceChildren(bar, body, status, tip)
  Object.assign(state, { canvas, tip, where, status, frame })
  state.draw = onFrame(() => {
    drawLegend(state, legend)
    drawMask(state)
  })
  const size = () => {
    state.width = Math.max(240, body.clientWidth)
    state.height = data.height ?? 520
    clampView(state)
    state.draw()
  }
  const observer = new ResizeObserver(size)
  observer.observe(body)
  fit.onclick = () => {
    state.view = { x: 0, y: 0, span: Math.max(T, 1) }
    state.draw()
  }
  zoomIn.onclick = () => zoom(state, state.width / 2, state.height / 2, 0.6)
  zoomOut.onclick = () => zoom(state, state.width / 2, state.height / 2, 1 / 0.6)
  interact(state)
  size()
  state.cleanup = () => observer.disconnect()
  return state.cleanup
}

const LEFT = 46
const TOP = 22

function plot(state) {
  const side = Math.min(state.width - LEFT - 12, state.height - TOP - 8)
  return { side, scale: side / state.view.span }
}

function clampView(state) {
  const { view, T } = state
  view.span = Math.max(12, Math.min(Math.max(T, 12), view.span))
  view.x = Math.max(0, Math.min(Math.max(0, T - view.span), view.x))
  view.y = Math.max(0, Math.min(Math.max(0, T - view.span), view.y))
}

function zoom(state, px, py, factor) {
  const { scale } = plot(state)
  const kx = state.view.x + (px - LEFT) / scale
  const qy = state.view.y + (py - TOP) / scale
  const span = Math.max(12, Math.min(state.T, state.view.span * factor))
  const ratio = span / state.view.span
  state.view = { span, x: kx - (kx - state.view.x) * ratio, y: qy - (qy - state.view.y) * ratio }
  clampView(state)
  state.draw()
}

function nodeColour(state, i) {
  const most = Math.max(2, state.data.n_sequences)
  return mix(state.theme.blue, state.theme.violet, Math.min(1, (state.owners[i] - 1) / (most - 1)))
}

function drawLegend(state, legend) {
  const { theme, data } = state
  legend.replaceChildren(document.createTextNode("visible, in:"))
  const key = (colour, label) => {
    const box = element("i")
    box.style.background = colour
    legend.append(box, document.createTextNode(label))
  }
  key(theme.blue, "one sequence")
  if (data.n_sequences > 1) key(theme.violet, `all ${count(data.n_sequences)}`)
  key(theme.panel, "not visible")
}

function drawMask(state) {
  const started = performance.now()
  const { theme, view, T } = state
  const context = sized(state.canvas, state.width, state.height)
  const { side, scale } = plot(state)
  context.clearRect(0, 0, state.width, state.height)
  context.fillStyle = theme.panel
  context.fillRect(LEFT, TOP, side, side)
  context.save()
  context.beginPath()
  context.rect(LEFT, TOP, side, side)
  context.clip()
  const X = (k) => LEFT + (k - view.x) * scale
  const Y = (q) => TOP + (q - view.y) * scale
  const right = view.x + view.span
  const bottom = view.y + view.span
  let drawn = 0
  for (let i = 0; i < state.start.length; i++) {
    const s = state.start[i]
    const e = state.stop[i]
    const E = state.end[i]
    if (e <= view.x || s >= right || E <= view.y || s >= bottom) continue
    drawn += 1
    context.fillStyle = nodeColour(state, i)
    const w = Math.max(0.6, (e - s) * scale)
    if (scale >= 3) {
      // Token squares: the triangle as it is, one column per key.
      for (let k = Math.max(s, Math.floor(view.x)); k < Math.min(e, Math.ceil(right)); k++) {
        context.fillRect(X(k), Y(k), scale - (scale > 5 ? 0.6 : 0), (e - k) * scale)
      }
    } else {
      context.beginPath()
      context.moveTo(X(s), Y(s))
      context.lineTo(X(s) + w, Y(e))
      context.lineTo(X(s), Y(e))
      context.closePath()
      context.fill()
    }
    if (E > e) {
      context.globalAlpha = 0.72
      context.fillRect(X(s), Y(e), w, (E - e) * scale)
      context.globalAlpha = 1
    }
  }
  if (state.hover) {
    context.strokeStyle = alpha(theme.text, 0.55)
    context.lineWidth = 1
    const cx = X(state.hover.k + 0.5)
    const cy = Y(state.hover.q + 0.5)
    context.beginPath()
    context.moveTo(cx, TOP)
    context.lineTo(cx, TOP + side)
    context.moveTo(LEFT, cy)
    context.lineTo(LEFT + side, cy)
    context.stroke()
  }
  context.restore()
  context.strokeStyle = theme.border
  context.strokeRect(LEFT + 0.5, TOP + 0.5, side, side)
  axes(context, state, X, Y, side)
  state.where.textContent = `keys ${count(Math.floor(view.x))}–${count(Math.min(T, Math.ceil(right)))} · queries ${count(Math.floor(view.y))}–${count(Math.min(T, Math.ceil(bottom)))}`
  const full = (T * (T + 1)) / 2
  const area = state.data.n_visible
  state.status.textContent =
    `${count(T)} × ${count(T)} · ${count(area)} visible pairs, ${((100 * area) / Math.max(1, full)).toFixed(1)} % of one causal triangle · ` +
    `${count(drawn)} of ${count(state.start.length)} nodes drawn in ${(performance.now() - started).toFixed(0)} ms`
  state.canvas.dataset.drawn = String(drawn)
}

function axes(context, state, X, Y, side) {
  const { theme, view } = state
  context.fillStyle = alpha(theme.text, 0.66)
  context.font = `11px ${theme.font}`
  const rough = view.span / 5
  const power = 10 ** Math.floor(Math.log10(Math.max(1, rough)))
  const step = Math.max(1, [1, 2, 5, 10].map((f) => f * power).find((value) => value >= rough))
  context.textAlign = "center"
  for (let k = Math.ceil(view.x / step) * step; k <= view.x + view.span; k += step) {
    const x = X(k)
    if (x > LEFT + 24 && x < LEFT + side - 6) context.fillText(count(k), x, TOP - 6)
  }
  context.textAlign = "right"
  for (let q = Math.ceil(view.y / step) * step; q <= view.y + view.span; q += step) {
    const y = Y(q)
    if (y > TOP + 14 && y < TOP + side - 2) context.fillText(count(q), LEFT - 5, y + 4)
  }
  context.textAlign = "left"
  context.fillText("key →", LEFT, TOP - 6)
  context.save()
  context.translate(LEFT - 34, TOP + 2)
  context.rotate(Math.PI / 2)
  context.fillText("query →", 0, 0)
  context.restore()
}

function nodeAt(state, token) {
  let low = 0
  let high = state.start.length - 1
  while (low < high) {
    const middle = (low + high + 1) >> 1
    if (state.start[middle] <= token) low = middle
    else high = middle - 1
  }
  return token < state.stop[low] ? low : -1
}

function verdictOf(state, q, k) {
  const kn = nodeAt(state, k)
  const qn = nodeAt(state, q)
  if (kn < 0 || qn < 0) return "padding: sees only itself"
  if (k > q) return "not visible: the key comes after the query"
  if (q >= state.end[kn]) return "not visible: another branch of the tree"
  return kn === qn ? "visible: same run of tokens" : "visible: the key is on the query's path to the root"
}

function tokenLabel(state, index) {
  const text = state.ids ? state.vocab.get(state.ids[index]) : null
  const id = state.ids ? ` · id ${state.ids[index]}` : ""
  return `${count(index)}${text === undefined || text === null ? "" : "  " + JSON.stringify(text)}${id}`
}

function owner(state, node) {
  const label = state.data.labels?.[node]
  return label ? label : `${count(state.owners[node])} sequences`
}

function interact(state) {
  const { canvas, tip, frame } = state
  let drag = null
  canvas.onwheel = (event) => {
    event.preventDefault()
    zoom(state, event.offsetX, event.offsetY, event.deltaY > 0 ? 1.25 : 0.8)
  }
  canvas.onpointerdown = (event) => {
    drag = { x: event.clientX, y: event.clientY, view: { ...state.view } }
    canvas.setPointerCapture(event.pointerId)
  }
  canvas.onpointerup = () => (drag = null)
  canvas.onpointermove = (event) => {
    const { scale, side } = plot(state)
    if (drag) {
      state.view.x = drag.view.x - (event.clientX - drag.x) / scale
      state.view.y = drag.view.y - (event.clientY - drag.y) / scale
      clampView(state)
      state.draw()
      tip.hidden = true
      return
    }
    const k = Math.floor(state.view.x + (event.offsetX - LEFT) / scale)
    const q = Math.floor(state.view.y + (event.offsetY - TOP) / scale)
    const inside = event.offsetX >= LEFT && event.offsetY >= TOP && event.offsetX <= LEFT + side && event.offsetY <= TOP + side
    if (!inside || k < 0 || q < 0 || k >= state.T || q >= state.T) {
      state.hover = null
      tip.hidden = true
      state.draw()
      return
    }
    state.hover = { k, q }
    const kn = nodeAt(state, k)
    const qn = nodeAt(state, q)
    const verdict = verdictOf(state, q, k)
    const table = element("table")
    const rows = [["query", tokenLabel(state, q)], ["in", qn < 0 ? "padding" : owner(state, qn)], ["key", tokenLabel(state, k)], ["in", kn < 0 ? "padding" : owner(state, kn)], ["mask", verdict]]
    for (const [name, value] of rows) {
      const row = element("tr")
      row.append(element("td", "", name), element("td", "", value))
      table.append(row)
    }
    tip.replaceChildren(table)
    const box = frame.getBoundingClientRect()
    placeTip(tip, frame, event.clientX - box.left, event.clientY - box.top)
    state.draw()
  }
  canvas.onpointerleave = () => {
    state.hover = null
    tip.hidden = true
    state.draw()
  }
  canvas.onkeydown = (event) => {
    const by = state.view.span / 8
    if (event.key === "ArrowLeft") state.view.x -= by
    else if (event.key === "ArrowRight") state.view.x += by
    else if (event.key === "ArrowUp") state.view.y -= by
    else if (event.key === "ArrowDown") state.view.y += by
    else if (event.key === "+") zoom(state, state.width / 2, state.height / 2, 0.7)
    else if (event.key === "-") zoom(state, state.width / 2, state.height / 2, 1.4)
    else return
    event.preventDefault()
    clampView(state)
    state.draw()
  }
}
