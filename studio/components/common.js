// Shared by every component: typed arrays, theme colours, state per instance, canvas set-up.

function decode(b64, Type) {
  if (!b64) return null
  const raw = atob(b64)
  const bytes = new Uint8Array(raw.length)
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i)
  return new Type(bytes.buffer)
}

const instances = new WeakMap()
function stateOf(parent, make) {
  if (!instances.has(parent)) instances.set(parent, make())
  return instances.get(parent)
}

function themeOf(parent) {
  const host = parent.host ?? parent
  const style = getComputedStyle(host)
  const read = (name, fallback) => style.getPropertyValue(name).trim() || fallback
  const theme = {
    text: read("--st-text-color", "#1c2330"),
    background: read("--st-background-color", "#ffffff"),
    panel: read("--st-secondary-background-color", "#f4f5f7"),
    border: read("--st-border-color", "#d9dce1"),
    primary: read("--st-primary-color", "#2f6fde"),
    font: read("--st-font", "system-ui, sans-serif"),
    mono: read("--st-code-font", "ui-monospace, monospace"),
    green: read("--st-green-color", "#1d9a5b"),
    red: read("--st-red-color", "#d64545"),
    orange: read("--st-orange-color", "#d98324"),
    blue: read("--st-blue-color", "#2f6fde"),
    violet: read("--st-violet-color", "#7a5af5"),
    gray: read("--st-gray-color", "#8a93a2"),
  }
  theme.dark = luminance(theme.background) < 0.4
  return theme
}

const rgbCache = new Map()
function rgb(colour) {
  if (rgbCache.has(colour)) return rgbCache.get(colour)
  const context = document.createElement("canvas").getContext("2d")
  context.fillStyle = colour
  const text = context.fillStyle
  let parts
  if (text.startsWith("#")) {
    const n = parseInt(text.slice(1), 16)
    parts = [(n >> 16) & 255, (n >> 8) & 255, n & 255]
  } else {
    parts = text.match(/[\d.]+/g).slice(0, 3).map(Number)
  }
  rgbCache.set(colour, parts)
  return parts
}

function luminance(colour) {
  const [r, g, b] = rgb(colour)
  return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255
}

function mix(a, b, t) {
  const x = rgb(a)
  const y = rgb(b)
  const at = Math.max(0, Math.min(1, t))
  return `rgb(${x.map((v, i) => Math.round(v + (y[i] - v) * at)).join(",")})`
}

function alpha(colour, a) {
  return `rgba(${rgb(colour).join(",")},${a})`
}

// One hue per owner, distinct for neighbours; same order in light and dark.
function ownerColour(index, theme) {
  const hue = (index * 137.508 + 212) % 360
  return `hsl(${hue} ${theme.dark ? 45 : 55}% ${theme.dark ? 52 : 60}%)`
}

function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1
  canvas.style.width = width + "px"
  canvas.style.height = height + "px"
  const w = Math.round(width * ratio)
  const h = Math.round(height * ratio)
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w
    canvas.height = h
  }
  const context = canvas.getContext("2d")
  context.setTransform(ratio, 0, 0, ratio, 0, 0)
  context.letterSpacing = "0.01px" // keeps the code font from drawing <| as one glyph
  return context
}

function element(tag, className, text) {
  const node = document.createElement(tag)
  if (className) node.className = className
  if (text !== undefined && text !== null) node.textContent = text
  return node
}

function count(n) {
  return Number(n).toLocaleString("en-US")
}

function visible(text) {
  return text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/\r/g, "␍").replace(UNSEEN, (c) => `⟨${unseenName(c)}⟩`)
}

// Characters that nobody sees, or that turn the order of others: text that hides something has them.
const UNSEEN = /[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu
const UNSEEN_NAMES = {
  "\u00ad": "SHY", "\u061c": "ALM", "\u200b": "ZWSP", "\u200c": "ZWNJ", "\u200d": "ZWJ", "\u200e": "LRM", "\u200f": "RLM",
  "\u202a": "LRE", "\u202b": "RLE", "\u202c": "PDF", "\u202d": "LRO", "\u202e": "RLO", "\u2060": "WJ", "\u2066": "LRI",
  "\u2067": "RLI", "\u2068": "FSI", "\u2069": "PDI", "\ufeff": "BOM",
}
const LETTER = /^(?!\p{Script=Latin})[\p{L}\p{M}]$/u

// Joiners belong between the parts of an emoji, and between letters of scripts that join. Code points are compared as
// numbers: Chromium 156 finds no astral character by a class before $.
function isJoined(text, index) {
  if (index === 0) return false
  const pair = index > 1 ? text.codePointAt(index - 2) : 0
  const before = pair > 0xffff ? pair : text.charCodeAt(index - 1)
  if ((before >= 0x1f000 && before <= 0x1faff) || (before >= 0x2600 && before <= 0x27bf) || before === 0xfe0f) return true
  return LETTER.test(String.fromCodePoint(before))
}

function unseenName(character) {
  return UNSEEN_NAMES[character] ?? "U+" + character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")
}

// The text as nodes, with what nobody sees shown by its name.
function markedText(text) {
  const out = document.createDocumentFragment()
  let from = 0
  for (const match of text.matchAll(UNSEEN)) {
    const character = match[0]
    const joins = character === "\u200c" || character === "\u200d"
    if (joins && isJoined(text, match.index)) continue
    const mark = element("span", "unseen", unseenName(character))
    mark.title = `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}: not seen in the text, or changes its order`
    out.append(document.createTextNode(text.slice(from, match.index)), mark)
    from = match.index + character.length
  }
  out.append(document.createTextNode(text.slice(from)))
  return out
}

// Redraws at most once per frame, whatever calls it.
function onFrame(draw) {
  let asked = false
  return () => {
    if (asked) return
    asked = true
    requestAnimationFrame(() => {
      asked = false
      draw()
    })
  }
}

function placeTip(tip, frame, x, y) {
  tip.hidden = false
  const box = frame.getBoundingClientRect()
  const w = tip.offsetWidth
  const h = tip.offsetHeight
  let left = x + 14
  if (left + w > box.width - 4) left = Math.max(4, x - w - 10)
  let top = y + 16
  if (top + h > box.height - 4) top = Math.max(4, y - h - 10)
  tip.style.left = left + "px"
  tip.style.top = top + "px"
}

const PAGE_CHARS = 20000

const WHOLE_TEXTS = { on: false }

// A text of any length: its first piece, and buttons that bring the rest; with WHOLE_TEXTS all of it.
function longText(tag, className, text) {
  if (WHOLE_TEXTS.on || text.length <= PAGE_CHARS * 1.2) {
    const whole = element(tag, className)
    whole.append(markedText(text))
    return whole
  }
  const box = element("div", "long")
  const node = element(tag, className)
  const bar = element("div", "morebar")
  let shown = 0
  const show = (upTo) => {
    const end = Math.min(text.length, upTo)
    node.append(markedText(text.slice(shown, end)))
    shown = end
    bar.hidden = shown >= text.length
    state.textContent = `${count(shown)} of ${count(text.length)} characters`
  }
  const state = element("span", "faint")
  const next = element("button", "more", "Show more")
  const all = element("button", "more", "Show all")
  next.onclick = () => show(shown + PAGE_CHARS)
  all.onclick = () => show(text.length)
  bar.append(state, next, all)
  box.append(node, bar)
  show(PAGE_CHARS)
  return box
}
