// Every token as a chip. Chunks of some hundred tokens are made when they come near the view, so that a
// context of 32k tokens (or ten times that) costs what is on the screen and no more.

const CHUNK_MIN = 160
const CHUNK_MAX = 420
const MODES = [
  ["logprob", "Log-prob"],
  ["entropy", "Entropy"],
  ["advantage", "Advantage"],
  ["mask", "Mask"],
  ["origin", "Origin"],
  ["position", "Position"],
]

export default function (component) {
  const { data, parentElement } = component
  const frame = parentElement.querySelector(".frame")
  const state = stateOf(parentElement, () => ({ mode: null, uid: null, sent: [] }))
  const theme = themeOf(parentElement)
  const sent = [data.ids, data.logprobs, data.entropy, data.advantages, data.diverges, data.in_loss]
  const fresh = state.uid !== data.uid || sent.some((value, i) => state.sent[i] !== value)
  state.theme = theme
  if (!fresh) {
    paint(state)
    state.refreshLegend?.()
    return state.cleanup
  }
  state.cleanup?.()
  Object.assign(state, {
    uid: data.uid, sent, data,
    ids: decode(data.ids, Int32Array) ?? new Int32Array(),
    logprob: decode(data.logprobs, Float32Array),
    entropy: decode(data.entropy, Float32Array),
    advantage: decode(data.advantages, Float32Array),
    vocab: new Map(data.vocab.map(([id, text, special]) => [id, { text, special }])),
    spelled: new Map(data.spelled.map(([start, n, text]) => [start, { n, text }])),
    within: new Map(data.spelled.flatMap(([start, n]) => Array.from({ length: n }, (_, k) => [start + k, start]))),
    hits: [], hit: -1, hitTokens: new Set(), pinned: -1,
  })
  state.most = { entropy: most(state.entropy), advantage: most(state.advantage) }
  const modes = MODES.filter(([mode]) => !["logprob", "entropy", "advantage"].includes(mode) || state[mode])
  if (!modes.some(([mode]) => mode === state.mode)) state.mode = modes[0][0]
  frame.replaceChildren()
  frame.append(toolbar(state, modes), scroller(state, data), statusLine(state))
  const tip = element("div", "tip")
  tip.hidden = true
  frame.append(tip)
  hover(state, frame, tip)
  observe(state)
  paint(state)
  state.refreshLegend()
  requestAnimationFrame(() => jump(state, data.focus ?? data.diverges ?? data.n_prompt))
  state.cleanup = () => state.observer.disconnect()
  return state.cleanup
}

// The text that a token adds. Of tokens that spell a character together, the first adds it.
function addedText(state, index) {
  const start = state.within.get(index)
  if (start === undefined) return textOf(state, index)
  return start === index ? state.spelled.get(start).text : ""
}

function textOf(state, index) {
  const entry = state.vocab.get(state.ids[index])
  return entry ? entry.text : null
}

function toolbar(state, modes) {
  const bar = element("div", "bar")
  const seg = element("div", "seg")
  for (const [mode, label] of modes) {
    const button = element("button", "", label)
    button.dataset.mode = mode
    button.setAttribute("aria-pressed", String(mode === state.mode))
    button.onclick = () => {
      state.mode = mode
      for (const other of seg.children) other.setAttribute("aria-pressed", String(other.dataset.mode === mode))
      paint(state)
      state.refreshLegend()
    }
    seg.append(button)
  }
  const legend = element("span", "legend faint")
  state.refreshLegend = () => drawLegend(state, legend)
  const places = element("div", "seg")
  const { n_prompt, n_shared } = state.data
  const spots = [["Start", 0]]
  if (n_shared > 0 && n_shared < n_prompt) spots.push(["New part", n_shared])
  spots.push(["Response", n_prompt])
  if (state.data.diverges !== null && state.data.diverges !== undefined) spots.push(["Divergence", state.data.diverges])
  for (const [label, index] of spots) {
    const button = element("button", "", label)
    button.title = `Go to token ${count(index)}`
    button.onclick = () => jump(state, index)
    places.append(button)
  }
  const search = element("input")
  search.type = "search"
  search.placeholder = "Find text, or #id"
  search.setAttribute("aria-label", "Find in tokens")
  const status = element("span", "faint found")
  search.oninput = () => find(state, search.value, status)
  search.onkeydown = (event) => {
    if (event.key === "Enter") step(state, event.shiftKey ? -1 : 1, status)
  }
  bar.append(seg, places, element("span", "grow"), legend, search, status)
  return bar
}

function drawLegend(state, legend) {
  const { theme, mode, data } = state
  legend.replaceChildren()
  const key = (colour, label) => {
    const box = element("i")
    box.style.background = colour
    legend.append(box, document.createTextNode(label))
  }
  if (mode === "logprob") {
    const ramp = element("i", "ramp")
    ramp.style.background = `linear-gradient(90deg, ${[0, 0.1, 0.5, 1].map((t) => surprise(t, theme)).join(",")})`
    legend.append(document.createTextNode("0"), ramp, document.createTextNode("−5 nats"))
  } else if (mode === "entropy") {
    const ramp = element("i", "ramp")
    ramp.style.background = `linear-gradient(90deg, ${[0, 0.5, 1].map((t) => unsure(t, theme)).join(",")})`
    legend.append(document.createTextNode("0"), ramp, document.createTextNode(`${state.most.entropy.toFixed(2)} nats`))
  } else if (mode === "advantage") {
    const ramp = element("i", "ramp")
    ramp.style.background = `linear-gradient(90deg, ${[-1, -0.5, 0, 0.5, 1].map((t) => credit(t, theme)).join(",")})`
    const top = state.most.advantage.toPrecision(3)
    legend.append(document.createTextNode("−" + top), ramp, document.createTextNode("+" + top))
  } else if (mode === "mask") {
    key(alpha(theme.green, 0.35), data.in_loss ? "in the loss" : "sampled, in the loss: none")
    key(alpha(theme.gray, 0.18), data.in_loss ? "context, not in the loss" : "not in the loss")
  } else if (mode === "origin") {
    key(alpha(theme.gray, 0.2), "shared with parent")
    key(alpha(theme.blue, 0.3), "new in prompt")
    key(alpha(theme.green, 0.35), "sampled")
  } else {
    key(positionColour(0, theme), "first")
    key(positionColour(1, theme), "last")
  }
}

function scroller(state, data) {
  const body = element("div", "body scroll")
  body.tabIndex = 0
  body.style.height = (data.height ?? 460) + "px"
  state.body = body
  state.chunks = []
  const n = state.ids.length
  const cuts = [0]
  const borders = [data.n_shared, data.n_prompt].filter((at) => at > 0 && at < n)
  let from = 0
  for (let i = 1; i <= n; i++) {
    const length = i - from
    const newline = (textOf(state, i - 1) ?? "").endsWith("\n")
    if (i < n && state.within.has(i) && state.within.get(i) !== i && !borders.includes(i)) continue
    if (i === n || borders.includes(i) || length >= CHUNK_MAX || (length >= CHUNK_MIN && newline)) {
      cuts.push(i)
      from = i
    }
  }
  for (let c = 0; c + 1 < cuts.length; c++) {
    const [a, b] = [cuts[c], cuts[c + 1]]
    const heading = headingAt(state, a)
    if (heading) body.append(heading)
    const chunk = element("div", "chunk")
    let lines = 1
    let width = 0
    for (let i = a; i < b; i++) {
      const text = addedText(state, i) ?? "00000"
      width += text.length + 1
      if (width > 110 || text.includes("\n")) {
        lines += 1
        width = 0
      }
    }
    chunk.style.minHeight = lines * 21 + "px"
    chunk.dataset.from = a
    chunk.dataset.to = b
    state.chunks.push(chunk)
    body.append(chunk)
  }
  if (n === 0) body.append(element("div", "none faint", "This step has no token ids."))
  return body
}

function headingAt(state, index) {
  const { n_prompt, n_shared } = state.data
  const n = state.ids.length
  if (index === 0 && n_shared > 0) return element("div", "heading", `Context shared with the parent step · ${count(n_shared)} tokens`)
  if (index === n_prompt && index < n) return element("div", "heading response", `Response, sampled · ${count(n - n_prompt)} tokens`)
  if (index === n_shared && index < n_prompt) return element("div", "heading fresh", `New in the prompt · ${count(n_prompt - n_shared)} tokens`)
  return null
}

function fill(state, chunk) {
  if (chunk.firstChild) return
  const out = document.createDocumentFragment()
  const to = Number(chunk.dataset.to)
  for (let i = Number(chunk.dataset.from); i < to; ) {
    const together = state.spelled.get(i)
    if (together && i + together.n <= to) {
      out.append(spelledBox(state, i, together))
      i += together.n
      continue
    }
    const entry = state.vocab.get(state.ids[i])
    out.append(chipOf(state, i))
    if (entry && entry.text.includes("\n")) out.append(element("br"))
    i += 1
  }
  chunk.append(out)
  chunk.style.minHeight = ""
}

function chipOf(state, i) {
  const entry = state.vocab.get(state.ids[i])
  const chip = element("span", "t")
  chip.dataset.i = i
  if (!entry) {
    chip.textContent = String(state.ids[i])
    chip.classList.add("raw")
  } else {
    if (entry.special) chip.classList.add("special")
    chip.textContent = visible(entry.text)
  }
  colour(state, chip, i)
  return chip
}

// A character above the tokens that spell it byte by byte.
function spelledBox(state, start, { n, text }) {
  const box = element("span", "spelled")
  const chips = element("span", "bytes")
  for (let i = start; i < start + n; i++) {
    const chip = chipOf(state, i)
    chip.textContent = chip.textContent.replaceAll("\\x", " ").trim()
    chips.append(chip)
  }
  box.append(element("span", "over", visible(text)), chips)
  return box
}

function observe(state) {
  state.observer = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) if (entry.isIntersecting) fill(state, entry.target)
    },
    { root: state.body, rootMargin: "500px" },
  )
  for (const chunk of state.chunks) state.observer.observe(chunk)
}

function surprise(t, theme) {
  if (t < 0.02) return alpha(theme.gray, 0.1)
  return mix(theme.background, t < 0.5 ? theme.orange : mix(theme.orange, theme.red, (t - 0.5) * 2), 0.16 + 0.74 * t)
}

function unsure(t, theme) {
  return t < 0.01 ? alpha(theme.gray, 0.1) : mix(theme.background, theme.violet, 0.12 + 0.7 * t)
}

// From red over the page's own colour to green: below, at, and above what the token is compared with.
function credit(t, theme) {
  return mix(theme.background, t < 0 ? theme.red : theme.green, 0.75 * Math.min(1, Math.abs(t)))
}

function most(values) {
  let largest = 0
  for (const value of values ?? []) if (!Number.isNaN(value)) largest = Math.max(largest, Math.abs(value))
  return largest || 1
}

function positionColour(t, theme) {
  return `hsl(${210 + 130 * t} ${theme.dark ? 38 : 70}% ${theme.dark ? 30 : 86}%)`
}

function colour(state, chip, i) {
  const { theme, mode, data } = state
  const sampled = i >= data.n_prompt
  let background = alpha(theme.gray, 0.12)
  let ink = ""
  if (mode === "logprob") {
    const value = sampled && state.logprob ? state.logprob[i - data.n_prompt] : NaN
    background = sampled ? (Number.isNaN(value) ? "transparent" : surprise(Math.min(1, -value / 5), theme)) : "transparent"
    if (!sampled) ink = alpha(theme.text, 0.62)
  } else if (mode === "entropy" || mode === "advantage") {
    const value = sampled ? state[mode][i - data.n_prompt] : NaN
    const share = value / state.most[mode]
    background = Number.isNaN(value) ? "transparent" : mode === "entropy" ? unsure(share, theme) : credit(share, theme)
    if (!sampled) ink = alpha(theme.text, 0.62)
  } else if (mode === "mask") {
    background = sampled ? alpha(data.in_loss ? theme.green : theme.gray, data.in_loss ? 0.35 : 0.18) : "transparent"
    if (!sampled) ink = alpha(theme.text, 0.62)
  } else if (mode === "origin") {
    background = sampled ? alpha(theme.green, 0.35) : i < data.n_shared ? alpha(theme.gray, 0.2) : alpha(theme.blue, 0.3)
  } else {
    background = positionColour(state.ids.length > 1 ? i / (state.ids.length - 1) : 0, theme)
  }
  chip.style.background = background
  chip.style.color = ink
  chip.classList.toggle("hit", state.hitTokens.has(i))
  chip.classList.toggle("current", state.hit >= 0 && state.hits[state.hit] && i >= state.hits[state.hit][0] && i < state.hits[state.hit][1])
  chip.classList.toggle("pinned", state.pinned === i)
  chip.classList.toggle("parts", data.diverges === i)
}

function paint(state) {
  for (const chunk of state.chunks) {
    for (const chip of chunk.querySelectorAll("[data-i]")) colour(state, chip, Number(chip.dataset.i))
  }
}

function chunkOf(state, index) {
  return state.chunks.find((chunk) => index < Number(chunk.dataset.to)) ?? state.chunks[state.chunks.length - 1]
}

function jump(state, index) {
  const chunk = chunkOf(state, index)
  if (!chunk) return
  const at = state.chunks.indexOf(chunk)
  // Neighbours first: their real height replaces the estimate before the scroll position is taken.
  for (let c = Math.max(0, at - 3); c <= Math.min(state.chunks.length - 1, at + 2); c++) fill(state, state.chunks[c])
  let target = chunk.querySelector(`[data-i="${index}"]`) ?? chunk
  const heading = Number(chunk.dataset.from) === index ? chunk.previousElementSibling : null
  if (heading?.classList.contains("heading")) target = heading
  const delta = target.getBoundingClientRect().top - state.body.getBoundingClientRect().top
  state.body.scrollTop += delta - (heading ? 4 : 80)
}

function find(state, query, status) {
  state.hits = []
  state.hitTokens = new Set()
  state.hit = -1
  if (query.startsWith("#") && /^#\d+$/.test(query)) {
    const id = Number(query.slice(1))
    for (let i = 0; i < state.ids.length; i++) if (state.ids[i] === id) state.hits.push([i, i + 1])
  } else if (query) {
    if (!state.text) {
      state.starts = new Int32Array(state.ids.length + 1)
      const parts = []
      let length = 0
      for (let i = 0; i < state.ids.length; i++) {
        const text = addedText(state, i) ?? `⟨${state.ids[i]}⟩`
        state.starts[i] = length
        length += text.length
        parts.push(text)
      }
      state.starts[state.ids.length] = length
      state.text = folded(parts.join(""))
    }
    const needle = folded(query)
    for (let at = state.text.indexOf(needle); at >= 0 && state.hits.length < 5000; at = state.text.indexOf(needle, at + needle.length)) {
      state.hits.push([tokenAt(state, at), tokenAt(state, at + needle.length - 1) + 1])
    }
  }
  for (const [a, b] of state.hits) for (let i = a; i < b; i++) state.hitTokens.add(i)
  if (state.hits.length) {
    const after = state.hits.findIndex(([a]) => a >= state.data.n_prompt)
    state.hit = after > 0 ? after - 1 : -1
    step(state, 1, status)
  } else {
    status.textContent = query ? "no match" : ""
    paint(state)
  }
}

// Small letters where that keeps the length, so that places in the text stay places in the tokens (İ would grow).
function folded(text) {
  const small = text.toLowerCase()
  if (small.length === text.length) return small
  return Array.from(text, (c) => (c.toLowerCase().length === c.length ? c.toLowerCase() : c)).join("")
}

function tokenAt(state, offset) {
  let low = 0
  let high = state.ids.length - 1
  while (low < high) {
    const middle = (low + high + 1) >> 1
    if (state.starts[middle] <= offset) low = middle
    else high = middle - 1
  }
  return low
}

function step(state, by, status) {
  if (!state.hits.length) return
  state.hit = (state.hit + by + state.hits.length) % state.hits.length
  status.textContent = `${count(state.hit + 1)} / ${count(state.hits.length)}`
  jump(state, state.hits[state.hit][0])
  paint(state)
}

function spelling(state, i) {
  const start = state.within.get(i)
  if (start === undefined) return []
  const { n, text } = state.spelled.get(start)
  return [["spells", `${JSON.stringify(text)}, part ${i - start + 1} of ${n}`]]
}

function describe(state, i) {
  const { data } = state
  const sampled = i >= data.n_prompt
  const text = textOf(state, i)
  const rows = [
    ["text", text === null ? "unknown: no tokenizer for this step" : JSON.stringify(text)],
    ...spelling(state, i),
    ["id", String(state.ids[i])],
    ["position", `${count(i)} of ${count(state.ids.length)}` + (sampled ? ` · response ${count(i - data.n_prompt)}` : "")],
    ["origin", sampled ? "sampled" : i < data.n_shared ? "prompt, shared with parent" : "prompt, new"],
  ]
  if (sampled) {
    const value = state.logprob ? state.logprob[i - data.n_prompt] : NaN
    rows.push(["log-prob", Number.isNaN(value) ? "unknown" : `${value.toFixed(4)} nats · p ${(100 * Math.exp(value)).toFixed(2)} %`])
  }
  for (const [name, unit] of [["entropy", " nats"], ["advantage", ""]]) {
    if (!sampled || !state[name]) continue
    const value = state[name][i - data.n_prompt]
    rows.push([name, Number.isNaN(value) ? "unknown" : value.toFixed(4) + unit])
  }
  if (data.diverges === i) rows.push(["divergence", data.against])
  rows.push(["loss mask", sampled && data.in_loss ? "1" : "0"])
  return rows
}

function hover(state, frame, tip) {
  state.body.onmousemove = (event) => {
    const chip = event.target.closest?.(".t")
    if (!chip) {
      tip.hidden = true
      return
    }
    const table = element("table")
    for (const [name, value] of describe(state, Number(chip.dataset.i))) {
      const row = element("tr")
      row.append(element("td", "", name), element("td", "", value))
      table.append(row)
    }
    tip.replaceChildren(table)
    const box = frame.getBoundingClientRect()
    placeTip(tip, frame, event.clientX - box.left, event.clientY - box.top)
  }
  state.body.onmouseleave = () => (tip.hidden = true)
  state.body.onclick = (event) => {
    const chip = event.target.closest?.(".t")
    state.pinned = chip ? Number(chip.dataset.i) : -1
    state.status.textContent = chip
      ? describe(state, state.pinned).map(([name, value]) => `${name} ${value}`).join("   ·   ")
      : state.summary
    paint(state)
  }
}

function statusLine(state) {
  const { data } = state
  const parts = [`${count(data.n_prompt)} prompt + ${count(state.ids.length - data.n_prompt)} response tokens`]
  if (data.n_shared) parts.push(`${count(data.n_shared)} shared with parent`)
  if (state.logprob) {
    let sum = 0
    let known = 0
    let low = Infinity
    for (const value of state.logprob) {
      if (Number.isNaN(value)) continue
      sum += value
      known += 1
      low = Math.min(low, value)
    }
    if (known) parts.push(`mean log-prob ${(sum / known).toFixed(3)} · lowest ${low.toFixed(2)} · perplexity ${Math.exp(-sum / known).toFixed(2)}`)
    if (known < state.logprob.length) parts.push(`${count(state.logprob.length - known)} without log-prob`)
  } else if (state.ids.length > data.n_prompt) {
    parts.push("no log-probs recorded")
  }
  for (const note of data.notes) parts.push(note)
  state.summary = parts.join("   ·   ")
  state.status = element("div", "status faint", state.summary)
  return state.status
}
