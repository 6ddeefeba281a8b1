// A whole trajectory in one scroll. A turn's cards are made when it comes near the view; the search goes over the data.

const KINDS = [
  ["system", "System"],
  ["user", "User"],
  ["reasoning", "Reasoning"],
  ["answer", "Answers"],
  ["arguments", "Calls"],
  ["result", "Results"],
]
const HITS_MAX = 5000

export default function (component) {
  const { data, parentElement, setTriggerValue } = component
  const frame = parentElement.querySelector(".frame")
  const state = stateOf(parentElement, () => ({ uid: null, folded: new Set(), rendered: false }))
  if (state.uid === data.uid && state.n === data.turns.length) {
    refresh(state, data)
    return state.cleanup
  }
  state.cleanup?.()
  Object.assign(state, {
    uid: data.uid, n: data.turns.length, data, open: new Set(),
    needle: "", hits: [], hit: -1, texts: null, choose: (uid) => setTriggerValue("step", uid),
  })
  frame.replaceChildren(toolbar(state, frame), scroller(state))
  applyFolding(state, frame)
  observe(state)
  const focused = data.turns.findIndex((turn) => turn.uid === data.focus)
  if (focused > 0) requestAnimationFrame(() => jump(state, focused))
  state.cleanup = () => state.observer.disconnect()
  return state.cleanup
}

// Labels may have changed: headings are drawn again, cards stay where they are.
function refresh(state, data) {
  state.data = data
  data.turns.forEach((turn, i) => state.sections[i].querySelector("header").replaceWith(heading(state, turn)))
}

function toolbar(state, frame) {
  const bar = element("div", "bar")
  const kinds = element("div", "seg")
  for (const [kind, label] of KINDS) {
    const button = element("button", "", label)
    button.title = `Fold or unfold: ${label.toLowerCase()}`
    button.setAttribute("aria-pressed", String(!state.folded.has(kind)))
    button.onclick = () => {
      if (!state.folded.delete(kind)) state.folded.add(kind)
      button.setAttribute("aria-pressed", String(!state.folded.has(kind)))
      applyFolding(state, frame)
    }
    kinds.append(button)
  }
  const layout = element("button", "", "Rendered")
  layout.title = "Markdown and diffs with their layout, instead of the plain text"
  layout.setAttribute("aria-pressed", String(state.rendered))
  layout.onclick = () => {
    state.rendered = !state.rendered
    layout.setAttribute("aria-pressed", String(state.rendered))
    redraw(state)
  }
  const copy = element("button", "", "Copy as messages")
  copy.title = "The conversation of the last step with its answer, as JSON"
  copy.onclick = async () => {
    const messages = conversation(state.data.turns)
    await navigator.clipboard.writeText(JSON.stringify(messages, null, 2))
    copy.textContent = `Copied ${count(messages.length)} messages`
    setTimeout(() => (copy.textContent = "Copy as messages"), 2000)
  }
  const search = element("input")
  search.type = "search"
  search.placeholder = "Find in all turns"
  search.setAttribute("aria-label", "Find in the transcript")
  state.status = element("span", "faint found")
  let waiting = 0
  search.oninput = () => {
    clearTimeout(waiting)
    waiting = setTimeout(() => find(state, search.value), 120)
  }
  search.onkeydown = (event) => {
    if (event.key === "Enter") move(state, event.shiftKey ? -1 : 1)
  }
  bar.append(kinds, layout, copy, element("span", "grow"), search, state.status)
  if (state.data.n_cut) bar.append(element("span", "faint", `${count(state.data.n_cut)} long texts are cut; the search covers what is shown`))
  return bar
}

// The messages of the last step's prompt and its answer, put together from what each turn adds.
function conversation(turns) {
  const lines = []
  for (const turn of turns) {
    const before = turn.parent === null ? [] : lines[turn.parent]
    const added = new Map(turn.hidden)
    for (const entry of turn.entries) if (!entry.sampled) added.set(entry.place, entry.raw)
    const own = [...added.keys()].sort((a, b) => a - b).map((place) => added.get(place))
    const answer = turn.entries.find((entry) => entry.sampled)
    lines.push([...before.slice(0, turn.n_shared), ...own, ...(answer ? [answer.raw] : [])])
  }
  return lines[lines.length - 1] ?? []
}

function applyFolding(state, frame) {
  for (const [kind] of KINDS) frame.classList.toggle("fold-" + kind, state.folded.has(kind))
}

function scroller(state) {
  const body = element("div", "body scroll")
  body.tabIndex = 0
  body.style.height = state.data.height + "px"
  body.setAttribute("aria-label", "Transcript")
  body.setAttribute("role", "region")
  state.body = body
  state.sections = state.data.turns.map((turn, i) => {
    const section = element("section", "turn")
    section.dataset.i = i
    const cards = element("div", "cards")
    const characters = turn.entries.reduce((sum, entry) => sum + entry.n_chars, 0)
    cards.style.minHeight = Math.min(900, 46 * turn.entries.length + Math.ceil(characters / 110) * 18) + "px"
    section.append(heading(state, turn), cards)
    body.append(section)
    return section
  })
  if (!state.sections.length) body.append(element("div", "none faint", "This trajectory has no step."))
  return body
}

function heading(state, turn) {
  const head = element("header", "turnhead")
  head.append(element("b", "", `Step ${turn.index}`), element("span", "title", turn.title))
  for (const fact of turn.facts) head.append(element("span", "faint", fact))
  head.append(element("span", "grow"))
  const open = element("button", "plain", "Open")
  open.title = `Open step ${turn.index}: tokens, facts, labels`
  open.onclick = () => state.choose(turn.uid)
  head.append(open)
  return head
}

function fill(state, section) {
  const cards = section.querySelector(".cards")
  if (cards.firstChild) return
  const turn = state.data.turns[Number(section.dataset.i)]
  const searched = state.needle && state.texts[Number(section.dataset.i)].includes(state.needle)
  RENDERING.on = state.rendered
  WHOLE_TEXTS.on = Boolean(searched)
  for (const text of turn.marks) cards.append(element("div", "mark", text))
  turn.entries.forEach((entry, k) => {
    const path = `${section.dataset.i}.${k}`
    if (searched && entry.reasoning) state.open.add(path + "r")
    cards.append(message(entry, path, state))
  })
  RENDERING.on = false
  WHOLE_TEXTS.on = false
  cards.style.minHeight = ""
  if (searched) highlight(section, state.needle)
}

function redraw(state) {
  for (const section of state.sections) {
    const cards = section.querySelector(".cards")
    if (!cards.firstChild) continue
    cards.style.minHeight = cards.offsetHeight + "px"
    cards.replaceChildren()
    state.observer.unobserve(section)
    state.observer.observe(section)
  }
}

function observe(state) {
  state.observer = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) if (entry.isIntersecting) fill(state, entry.target)
    },
    { root: state.body, rootMargin: "700px" },
  )
  for (const section of state.sections) state.observer.observe(section)
}

function jump(state, i) {
  for (let k = Math.max(0, i - 2); k <= Math.min(state.sections.length - 1, i + 1); k++) fill(state, state.sections[k])
  state.body.scrollTop += state.sections[i].getBoundingClientRect().top - state.body.getBoundingClientRect().top - 4
}

function textOfTurn(turn) {
  const texts = []
  for (const entry of turn.entries) {
    texts.push(entry.reasoning)
    for (const part of entry.parts) texts.push(part.text ?? "")
    for (const call of entry.calls) {
      texts.push(call.name ?? "", call.arguments)
      for (const part of call.result?.parts ?? []) texts.push(part.text ?? "")
    }
  }
  return texts.join("\n").toLowerCase()
}

function find(state, query) {
  state.texts ??= state.data.turns.map(textOfTurn)
  const before = state.needle
  state.needle = query.toLowerCase()
  state.hits = []
  state.hit = -1
  for (let i = 0; state.needle && i < state.texts.length && state.hits.length < HITS_MAX; i++) {
    let nth = 0
    for (let at = state.texts[i].indexOf(state.needle); at >= 0; at = state.texts[i].indexOf(state.needle, at + state.needle.length)) {
      state.hits.push([i, nth++])
    }
  }
  if (before || state.needle) redraw(state)
  if (state.hits.length) move(state, 1)
  else state.status.textContent = query ? "no match" : ""
}

function move(state, by) {
  if (!state.hits.length) return
  state.hit = (state.hit + by + state.hits.length) % state.hits.length
  const [i, nth] = state.hits[state.hit]
  const n = state.hits.length >= HITS_MAX ? `${count(HITS_MAX)}+` : count(state.hits.length)
  state.status.textContent = `${count(state.hit + 1)} of ${n}, step ${state.data.turns[i].index}`
  jump(state, i)
  for (const old of state.body.querySelectorAll("mark.current")) old.classList.remove("current")
  const mark = state.sections[i].querySelectorAll("mark.hit")[nth]
  if (!mark) return
  mark.classList.add("current")
  // Texts scroll inside their cards, too.
  const inner = mark.closest(".text, pre")
  if (inner && inner.scrollHeight > inner.clientHeight) {
    inner.scrollTop += mark.getBoundingClientRect().top - inner.getBoundingClientRect().top - inner.clientHeight / 2
  }
  const place = mark.getBoundingClientRect().top - state.body.getBoundingClientRect().top
  if (place < 60 || place > state.body.clientHeight - 60) state.body.scrollTop += place - state.body.clientHeight / 2
}

function highlight(section, needle) {
  for (const box of section.querySelectorAll(".cards .text, .cards .callhead b")) {
    const nodes = []
    const walker = document.createTreeWalker(box, NodeFilter.SHOW_TEXT)
    while (walker.nextNode()) nodes.push(walker.currentNode)
    for (const node of nodes) {
      const text = node.nodeValue
      const small = text.toLowerCase()
      if (small.length !== text.length || !small.includes(needle)) continue
      const out = document.createDocumentFragment()
      let from = 0
      for (let at = small.indexOf(needle); at >= 0; at = small.indexOf(needle, from)) {
        out.append(document.createTextNode(text.slice(from, at)), element("mark", "hit", text.slice(at, at + needle.length)))
        from = at + needle.length
      }
      out.append(document.createTextNode(text.slice(from)))
      node.replaceWith(out)
    }
  }
}
