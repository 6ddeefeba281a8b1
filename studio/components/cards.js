// Messages as cards. Everything is set through textContent: what an agent wrote is data.

const ROLE_LABEL = { system: "System", developer: "Developer", user: "User", assistant: "Assistant", tool: "Tool result" }
const PAGE_CARDS = 60

// A huge step must not stop the page: cards come in pages of some tens, texts in pieces; a button brings the next.
function paged(parent, items, make) {
  let shown = 0
  const more = element("button", "more")
  const next = () => {
    const end = Math.min(items.length, shown + PAGE_CARDS)
    const out = document.createDocumentFragment()
    for (; shown < end; shown++) out.append(make(items[shown], shown))
    more.remove()
    parent.append(out)
    if (shown < items.length) {
      more.textContent = `${count(Math.min(PAGE_CARDS, items.length - shown))} more of ${count(items.length - shown)}`
      parent.append(more)
    }
  }
  more.onclick = next
  next()
}

function render(entry, path, state) {
  if (entry.kind === "folded") return folded(entry, path, state)
  if (entry.kind === "mark") return element("div", "mark", entry.text)
  return message(entry, path, state)
}

function foldable(className, label, path, state, fill, openByDefault) {
  const details = element("details", className)
  const summary = element("summary")
  summary.append(...label)
  details.append(summary)
  let filled = false
  const show = () => {
    if (!filled && details.open) {
      filled = true
      fill(details)
    }
  }
  details.open = state.open.has(path) || (openByDefault && !state.open.has("!" + path))
  show()
  details.ontoggle = () => {
    state.open.delete(details.open ? "!" + path : path)
    state.open.add(details.open ? path : "!" + path)
    show()
  }
  return details
}

function folded(entry, path, state) {
  const label = [element("b", "", `${count(entry.n)} ${entry.n === 1 ? "message" : "messages"}`), document.createTextNode(" " + entry.label)]
  return foldable("history", label, path, state, (details) => {
    paged(details, entry.entries, (inner, index) => render(inner, path + "." + index, state))
  })
}

function message(entry, path, state) {
  const card = element("article", `card ${entry.role}${entry.sampled ? " sampled" : ""}`)
  const head = element("header")
  head.append(element("span", "role", ROLE_LABEL[entry.role] ?? entry.role))
  if (entry.sampled || entry.badge) head.append(element("span", "badge", entry.badge ?? "sampled"))
  if (entry.name) head.append(element("span", "mono name", entry.name))
  for (const note of entry.notes ?? []) head.append(element("span", "faint", note))
  head.append(element("span", "grow"))
  const size = element("span", "faint size", `${count(entry.n_chars)} chars`)
  const raw = element("button", "plain", "JSON")
  raw.title = "Raw message"
  raw.setAttribute("aria-pressed", "false")
  head.append(size)
  if (entry.raw) head.append(raw)
  const body = element("div", "content")
  const pre = element("pre", "raw")
  pre.hidden = true
  raw.onclick = () => {
    pre.hidden = !pre.hidden
    body.hidden = !pre.hidden
    if (!pre.firstChild) pre.append(longText("div", "", JSON.stringify(entry.raw, null, 2)))
    raw.setAttribute("aria-pressed", String(!pre.hidden))
  }
  if (entry.reasoning) {
    const label = [document.createTextNode("Reasoning"), element("span", "faint", ` ${count(entry.reasoning.length)} chars`)]
    body.append(foldable("reasoning", label, path + "r", state, (details) => details.append(longText("div", "text", entry.reasoning))))
  }
  for (const part of entry.parts) body.append(partOf(part))
  entry.calls.forEach((call, index) => body.append(toolCall(call, path + "c" + index, state)))
  if (!body.firstChild) body.append(element("div", "faint", "empty"))
  card.append(head, body, pre)
  return card
}

function partOf(part) {
  if (part.kind === "image") {
    if (part.src) {
      const image = element("img")
      image.src = part.src
      image.alt = part.alt ?? "image in the message"
      return image
    }
    return element("div", "faint", part.alt)
  }
  if (part.kind === "json") return longText("pre", "text code", part.text)
  if (RENDERING.on && part.text.length < RENDERED_CHARS) return renderedText(part.text, part.kind === "code")
  return longText("div", part.kind === "code" ? "text code" : "text", part.text)
}

function toolCall(call, path, state) {
  const row = element("div", "call")
  const left = element("div", "side arguments")
  const head = element("div", "callhead")
  head.append(element("span", "badge tool", "call"), element("b", "mono", call.name ?? "unnamed"))
  if (call.id) head.append(element("span", "faint mono id", call.id))
  if (call.problem) head.append(element("span", "badge bad", call.problem))
  left.append(head, longText("pre", "text code", call.arguments))
  const right = element("div", "side result")
  const resultHead = element("div", "callhead")
  resultHead.append(element("span", "badge", "result"))
  if (call.result === null || call.result === undefined) {
    resultHead.append(element("span", "faint", call.waiting ?? "no result in this trajectory"))
    right.append(resultHead)
  } else {
    if (call.result.where) resultHead.append(element("span", "faint", call.result.where))
    right.append(resultHead)
    for (const part of call.result.parts) right.append(partOf(part.kind === "text" ? { kind: "code", text: part.text } : part))
  }
  row.append(left, right)
  return row
}

// Markdown and diffs as text with a layout. Nodes are made one by one and filled with text: no HTML of a message is
// parsed, links are shown as text, and images are not loaded.

const RENDERING = { on: false }
const RENDERED_CHARS = 200000
const DIFF = /^(diff --git |@@ -\d|--- \S.*\n\+\+\+ \S)/m

function renderedText(text, isOutput) {
  const box = element("div", "text rendered")
  if (DIFF.test(text) && !text.includes("```")) {
    box.append(diffLines(text))
    return box
  }
  if (isOutput) return longText("div", "text code", text)
  const lines = text.split("\n")
  let paragraph = []
  const flush = () => {
    if (paragraph.length) box.append(inline("p", paragraph.join("\n")))
    paragraph = []
  }
  for (let i = 0; i < lines.length; i++) {
    const line = lines[i]
    const fence = line.match(/^\s*(```+|~~~+)\s*([\w+-]*)/)
    const heading = line.match(/^(#{1,6})\s+(.*)/)
    const item = line.match(/^(\s*)([-*+]|\d+[.)])\s+(.*)/)
    if (fence) {
      flush()
      const code = []
      while (++i < lines.length && !lines[i].trim().startsWith(fence[1])) code.push(lines[i])
      box.append(codeBlock(code.join("\n"), fence[2]))
    } else if (heading) {
      flush()
      box.append(inline("h" + Math.min(6, heading[1].length + 3), heading[2]))
    } else if (item) {
      flush()
      const row = inline("div", item[3])
      row.className = "item"
      row.style.marginLeft = 12 + 8 * item[1].length + "px"
      row.prepend(element("span", "bullet", /\d/.test(item[2]) ? item[2] : "•"))
      box.append(row)
    } else if (line.startsWith(">")) {
      flush()
      const quote = inline("div", line.replace(/^>\s?/, ""))
      quote.className = "quote"
      box.append(quote)
    } else if (!line.trim()) flush()
    else paragraph.push(line)
  }
  flush()
  return box
}

function codeBlock(code, language) {
  if (language === "diff" || language === "patch" || DIFF.test(code)) return diffLines(code)
  const pre = element("pre", "block")
  pre.append(markedText(code))
  return pre
}

function diffLines(text) {
  const pre = element("pre", "block diff")
  for (const line of text.split("\n")) {
    const kind = /^(\+\+\+|---|diff |index )/.test(line) ? "file" : line[0] === "+" ? "add" : line[0] === "-" ? "del" : line.startsWith("@@") ? "hunk" : ""
    const row = element("div", kind)
    row.append(markedText(line || " "))
    pre.append(row)
  }
  return pre
}

function inline(tag, text) {
  const node = element(tag)
  const pattern = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|(?<![\w*])\*([^*\s][^*\n]*)\*(?!\w)/g
  let from = 0
  for (const match of text.matchAll(pattern)) {
    node.append(markedText(text.slice(from, match.index)))
    const inner = element(match[1] ? "code" : match[2] ? "strong" : "em")
    inner.append(markedText(match[1] ?? match[2] ?? match[3]))
    node.append(inner)
    from = match.index + match[0].length
  }
  node.append(markedText(text.slice(from)))
  return node
}
