// The prefix tree of token sequences: left to right by token position, one lane per leaf. A node's width is its
// tokens, its height the sequences that share it. Drawn on canvas; nodes outside the view or thinner than a
// pixel cost one comparison.

const WIDTHS = [["compact", "√ width"], ["tokens", "Tokens"], ["equal", "Equal"]]

export default function (component) {
  const { data, parentElement, setTriggerValue } = component
  const frame = parentElement.querySelector(".frame")
  const theme = themeOf(parentElement)
  const state = stateOf(parentElement, () => ({ uid: null, width: "compact", mode: null }))
  state.select = (node) => setTriggerValue("node", node)
  if (state.uid === data.uid && state.sent === data.nodes.start) {
    state.theme = theme
    state.data = data
    load(state, data)
    place(state)
    state.legend()
    state.draw()
    return state.cleanup
  }
  state.cleanup?.()
  Object.assign(state, { uid: data.uid, sent: data.nodes.start, data, theme, hover: -1 })
  load(state, data)
  const modes = data.modes
  state.mode = data.colour ?? state.mode
  if (!modes.some(([mode]) => mode === state.mode)) state.mode = modes[0][0]
  const bar = element("div", "bar")
  bar.append(segment(modes, state.mode, (mode) => {
    state.mode = mode
    setTriggerValue("colour", mode)
    state.legend()
    state.draw()
  }))
  const legend = element("span", "legend faint")
  bar.append(legend, element("span", "grow"))
  bar.append(segment(WIDTHS, state.width, (mode) => {
    state.width = mode
    place(state)
    fit(state)
  }))
  const fitButton = element("button", "", "Fit")
  fitButton.onclick = () => fit(state)
  bar.append(fitButton)
  const body = element("div", "body treebody")
  const canvas = element("canvas")
  canvas.tabIndex = 0
  canvas.setAttribute("role", "img")
  canvas.setAttribute("aria-label", `Prefix tree of ${data.n_sequences} sequences, ${data.n_packed} tokens`)
  const tip = element("div", "tip")
  tip.hidden = true
  const status = element("div", "status faint")
  body.append(canvas)
  frame.replaceChildren(bar, body, status, tip)
  Object.assign(state, { canvas, tip, status, frame })
  state.draw = onFrame(() => drawTree(state))
  state.legend = () => drawLegend(state, legend)
  place(state)
  const size = () => {
    const first = state.pxWidth === undefined
    state.pxWidth = Math.max(240, body.clientWidth)
    state.pxHeight = data.height ?? 420
    if (first || !state.moved) fit(state)
    else state.draw()
  }
  state.pxWidth = undefined
  state.moved = false
  const observer = new ResizeObserver(size)
  observer.observe(body)
  interact(state)
  size()
  state.legend()
  state.cleanup = () => observer.disconnect()
  return state.cleanup
}

function segment(choices, current, pick) {
  const seg = element("div", "seg")
  for (const [value, label] of choices) {
    const button = element("button", "", label)
    button.dataset.value = value
    button.setAttribute("aria-pressed", String(value === current))
    button.onclick = () => {
      for (const other of seg.children) other.setAttribute("aria-pressed", String(other === button))
      pick(value)
    }
    seg.append(button)
  }
  return seg
}

function load(state, data) {
  const int = (name) => decode(data.nodes[name], Int32Array) ?? new Int32Array()
  const float = (name) => decode(data.nodes[name], Float32Array)
  Object.assign(state, {
    start: int("start"), stop: int("stop"), parent: int("parent"), position: int("position"),
    laneFrom: int("lane_from"), laneTo: int("lane_to"), owners: int("n_owners"),
    sampled: float("sampled"), reward: float("reward"), advantage: float("advantage"), policy: float("policy"), drift: float("drift"),
    selected: data.selected ?? -1, n: int("start").length,
  })
  state.range = {}
  for (const name of ["reward", "advantage", "policy", "drift"]) {
    let low = Infinity
    let high = -Infinity
    for (const value of state[name] ?? []) {
      if (Number.isNaN(value)) continue
      low = Math.min(low, value)
      high = Math.max(high, value)
    }
    state.range[name] = low > high ? null : [low, high]
  }
}

// Parents come before their children in depth-first order, so one pass places every node.
function place(state) {
  const x0 = new Float64Array(state.n)
  const x1 = new Float64Array(state.n)
  let most = 1
  for (let i = 0; i < state.n; i++) {
    const tokens = state.stop[i] - state.start[i]
    const width = state.width === "tokens" ? tokens : state.width === "equal" ? 1 : Math.sqrt(tokens)
    x0[i] = state.parent[i] < 0 ? 0 : x1[state.parent[i]]
    x1[i] = x0[i] + width
    most = Math.max(most, x1[i])
  }
  state.x0 = x0
  state.x1 = x1
  state.extent = most
}

function fit(state) {
  state.moved = false
  state.sx = (state.pxWidth - 8) / state.extent
  state.sy = Math.min(64, (state.pxHeight - 10) / Math.max(1, state.data.n_lanes))
  state.ox = 4
  state.oy = 5 + Math.max(0, (state.pxHeight - 10 - state.sy * state.data.n_lanes) / 2)
  state.draw()
}

function scaleColour(state, name, value) {
  const { theme } = state
  const range = state.range[name]
  if (!range || Number.isNaN(value)) return mix(theme.background, theme.gray, 0.35)
  if (name === "drift") return mix(mix(theme.background, theme.red, 0.4), theme.red, value / Math.max(1, range[1]))
  if (name === "policy") {
    const t = range[1] > range[0] ? (value - range[0]) / (range[1] - range[0]) : 1
    return mix(theme.blue, theme.violet, t)
  }
  const low = Math.min(range[0], 0)
  const high = Math.max(range[1], 0)
  const middle = name === "reward" && range[0] >= 0 ? (low + high) / 2 : 0
  const reach = Math.max(high - middle, middle - low) || 1
  const t = (value - middle) / reach
  return mix(mix(theme.background, theme.gray, 0.3), t >= 0 ? theme.green : theme.red, Math.min(1, Math.abs(t)) * 0.85 + 0.1)
}

function nodeColour(state, i) {
  const { theme, mode } = state
  if (mode === "role") return mix(mix(theme.background, theme.gray, 0.45), theme.green, 0.85 * state.sampled[i])
  if (mode === "sharing") {
    const most = Math.max(2, state.data.n_sequences)
    if (state.owners[i] === 1) return mix(theme.background, theme.blue, 0.45)
    return mix(theme.blue, theme.violet, Math.log(state.owners[i]) / Math.log(most))
  }
  return scaleColour(state, mode, state[mode][i])
}

function drawLegend(state, legend) {
  const { theme, mode } = state
  legend.replaceChildren()
  const key = (colour, label) => {
    const box = element("i")
    box.style.background = colour
    legend.append(box, document.createTextNode(label))
  }
  if (mode === "role") {
    key(mix(theme.background, theme.gray, 0.45), "context")
    key(mix(mix(theme.background, theme.gray, 0.45), theme.green, 0.85), "sampled")
  } else if (mode === "sharing") {
    key(mix(theme.background, theme.blue, 0.45), "one sequence")
    key(theme.violet, `all ${count(state.data.n_sequences)}`)
  } else {
    const range = state.range[mode]
    if (mode === "drift") key(theme.red, `sharing lost before it, up to ${count(range[1])} tokens`)
    else if (!range) legend.append(document.createTextNode("no known value"))
    else {
      key(scaleColour(state, mode, range[0]), mode === "policy" ? `v${range[0]}` : range[0].toFixed(2))
      if (range[1] > range[0]) key(scaleColour(state, mode, range[1]), mode === "policy" ? `v${range[1]}` : range[1].toFixed(2))
      if (state[mode].some(Number.isNaN)) key(scaleColour(state, mode, NaN), "unknown")
    }
  }
}

function drawTree(state) {
  const started = performance.now()
  const { theme } = state
  const context = sized(state.canvas, state.pxWidth, state.pxHeight)
  context.clearRect(0, 0, state.pxWidth, state.pxHeight)
  let drawn = 0
  context.font = `11px ${theme.mono}`
  context.textBaseline = "middle"
  const gap = state.sy > 5 ? 1 : 0
  for (let i = 0; i < state.n; i++) {
    const x = state.ox + state.x0[i] * state.sx
    const w = (state.x1[i] - state.x0[i]) * state.sx
    const y = state.oy + state.laneFrom[i] * state.sy
    const h = (state.laneTo[i] - state.laneFrom[i]) * state.sy
    if (x > state.pxWidth || x + w < 0 || y > state.pxHeight || y + h < 0) continue
    drawn += 1
    context.fillStyle = nodeColour(state, i)
    context.fillRect(x, y, Math.max(0.7, w - (w > 3 ? 1 : 0)), Math.max(0.7, h - gap))
    if (i === state.hover || i === state.selected) {
      context.strokeStyle = i === state.selected ? theme.text : theme.primary
      context.lineWidth = 2
      context.strokeRect(x + 1, y + 1, Math.max(1, w - 3), Math.max(1, h - gap - 2))
    }
    if (h >= 12 && w > 40) {
      const label = `${count(state.stop[i] - state.start[i])}`
      const text = state.data.labels?.[i]
      context.save()
      context.beginPath()
      context.rect(Math.max(x, 0), y, w - 4, h)
      context.clip()
      context.fillStyle = ink(state, i)
      const left = Math.max(x, 0) + 5
      const middle = y + h / 2
      context.font = `600 11px ${theme.font}`
      context.fillText(label, left, middle - (h >= 30 && text ? 7 : 0))
      const used = context.measureText(label).width
      context.font = `11px ${theme.mono}`
      if (text) {
        if (h >= 30) context.fillText(text, left, middle + 8)
        else if (w > 110) context.fillText(text, left + used + 8, middle)
      }
      context.restore()
    }
  }
  state.status.textContent =
    `${count(state.data.n_sequences)} sequences · ${count(state.data.n_original)} tokens, ${count(state.data.n_packed)} once shared · ` +
    `${count(drawn)} of ${count(state.n)} nodes drawn in ${(performance.now() - started).toFixed(0)} ms · wheel zooms, drag pans, click a node`
  state.canvas.dataset.drawn = String(drawn)
}

function ink(state, i) {
  return luminance(nodeColour(state, i)) > 0.52 ? "#10161f" : "#ffffff"
}

function nodeAt(state, px, py) {
  const lane = (py - state.oy) / state.sy
  const x = (px - state.ox) / state.sx
  for (let i = state.n - 1; i >= 0; i--) {
    if (lane >= state.laneFrom[i] && lane < state.laneTo[i] && x >= state.x0[i] && x < state.x1[i]) return i
  }
  return -1
}

function interact(state) {
  const { canvas, tip, frame } = state
  let drag = null
  canvas.onwheel = (event) => {
    event.preventDefault()
    state.moved = true
    const factor = event.deltaY > 0 ? 0.8 : 1.25
    const fx = event.shiftKey ? 1 : factor
    const fy = event.altKey ? 1 : factor
    state.ox = event.offsetX - (event.offsetX - state.ox) * fx
    state.oy = event.offsetY - (event.offsetY - state.oy) * fy
    state.sx *= fx
    state.sy *= fy
    state.draw()
  }
  canvas.onpointerdown = (event) => {
    drag = { x: event.clientX, y: event.clientY, ox: state.ox, oy: state.oy, far: false }
    canvas.setPointerCapture(event.pointerId)
  }
  canvas.onpointerup = (event) => {
    if (drag && !drag.far) {
      const node = nodeAt(state, event.offsetX, event.offsetY)
      if (node >= 0) {
        state.selected = node
        state.draw()
        state.select(node)
      }
    }
    drag = null
  }
  canvas.onpointermove = (event) => {
    if (drag) {
      const dx = event.clientX - drag.x
      const dy = event.clientY - drag.y
      if (Math.abs(dx) + Math.abs(dy) > 4) drag.far = true
      if (drag.far) {
        state.moved = true
        state.ox = drag.ox + dx
        state.oy = drag.oy + dy
        tip.hidden = true
        state.draw()
      }
      return
    }
    const node = nodeAt(state, event.offsetX, event.offsetY)
    if (node !== state.hover) {
      state.hover = node
      state.draw()
    }
    canvas.style.cursor = node >= 0 ? "pointer" : "grab"
    if (node < 0) {
      tip.hidden = true
      return
    }
    const tokens = state.stop[node] - state.start[node]
    const table = element("table")
    const rows = [
      ["tokens", `${count(tokens)} · positions ${count(state.position[node])}–${count(state.position[node] + tokens - 1)}`],
      ["shared by", `${count(state.owners[node])} of ${count(state.data.n_sequences)} sequences`],
      ["saves", `${count(tokens * (state.owners[node] - 1))} tokens`],
      ["sampled", `${(100 * state.sampled[node]).toFixed(0)} %`],
    ]
    for (const name of ["reward", "advantage", "policy"]) {
      const value = state[name]?.[node]
      if (value !== undefined && !Number.isNaN(value)) rows.push([name === "policy" ? "policy version" : `mean ${name}`, name === "policy" ? String(value) : value.toFixed(3)])
    }
    const lost = state.drift?.[node]
    if (lost > 0) rows.push(["sharing lost", `${count(lost)} tokens: the prompt differs from the step before from here on`])
    if (state.data.labels?.[node]) rows.push(["text", state.data.labels[node]])
    for (const [name, value] of rows) {
      const row = element("tr")
      row.append(element("td", "", name), element("td", "", value))
      table.append(row)
    }
    tip.replaceChildren(table)
    const box = frame.getBoundingClientRect()
    placeTip(tip, frame, event.clientX - box.left, event.clientY - box.top)
  }
  canvas.onpointerleave = () => {
    state.hover = -1
    tip.hidden = true
    state.draw()
  }
  canvas.onkeydown = (event) => {
    const children = (of) => [...Array(state.n).keys()].filter((i) => state.parent[i] === of)
    let next = state.selected < 0 ? 0 : state.selected
    if (event.key === "ArrowRight") next = children(next)[0] ?? next
    else if (event.key === "ArrowLeft") next = Math.max(0, state.parent[next])
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const peers = children(state.parent[next])
      next = peers[peers.indexOf(next) + (event.key === "ArrowDown" ? 1 : -1)] ?? next
    } else if (event.key === "Enter" && state.selected >= 0) state.select(state.selected)
    else return
    event.preventDefault()
    state.selected = next
    state.draw()
  }
}
