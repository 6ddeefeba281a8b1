// Rows of an export: the text of each token sequence, with what is in the loss marked by its advantage.

const CONTEXT_HEAD = 240
const CONTEXT_TAIL = 600

export default function (component) {
  const { data, parentElement } = component
  const frame = parentElement.querySelector(".frame")
  const theme = themeOf(parentElement)
  frame.replaceChildren(legend(data, theme))
  for (const row of data.rows) frame.append(rowOf(row, data.most, theme))
}

function legend(data, theme) {
  const bar = element("div", "legend")
  const key = (className, colour, text) => {
    const box = element("i", className)
    if (colour) box.style.background = colour
    bar.append(box, element("span", "", text))
  }
  key("context", "", "context, not in the loss")
  if (data.most === null) key("", lossColour(null, null, theme), "in the loss")
  else {
    const ramp = [-1, -0.5, 0, 0.5, 1].map((t) => lossColour(t * data.most, data.most, theme)).join(",")
    key("ramp", `linear-gradient(90deg, ${ramp})`, `in the loss, advantage −${data.most.toPrecision(3)} to +${data.most.toPrecision(3)}`)
  }
  return bar
}

function lossColour(advantage, most, theme) {
  if (advantage === null || most === null) return mix(theme.background, theme.green, 0.3)
  return mix(theme.background, advantage < 0 ? theme.red : theme.green, 0.12 + 0.45 * Math.min(1, Math.abs(advantage) / (most || 1)))
}

function rowOf(row, most, theme) {
  const card = element("article", "row")
  const head = element("header")
  head.append(element("b", "", row.title))
  for (const [name, value] of row.fields) {
    const field = element("span", "field")
    field.append(element("span", "faint", name + " "), element("span", "mono", value))
    head.append(field)
  }
  const body = element("div", row.sequences.length > 1 && row.paired ? "sequences pair" : "sequences")
  for (const one of row.sequences) body.append(sequenceOf(one, most, theme))
  card.append(head, body)
  return card
}

function sequenceOf(one, most, theme) {
  const box = element("section")
  const head = element("div", "name")
  if (one.name) head.append(element("b", `side ${one.name}`, one.name))
  head.append(element("span", "faint", `${count(one.n)} tokens, ${count(one.n_loss)} in the loss${one.advantage === null ? "" : `, advantage ${one.advantage}`}`))
  const text = element("div", "tokens")
  text.tabIndex = 0
  text.setAttribute("role", "group")
  text.setAttribute("aria-label", `${one.name || "row"}: text of its tokens`)
  for (const run of one.runs) text.append(run.loss ? lossRun(run, most, theme) : contextRun(run))
  if (!one.runs.length) text.append(element("span", "faint", "no tokens"))
  box.append(head, text)
  return box
}

function lossRun(run, most, theme) {
  const mark = element("mark")
  mark.append(markedText(run.text))
  mark.style.background = lossColour(run.advantage, most, theme)
  mark.title = `${count(run.n)} tokens in the loss` + (run.advantage === null ? "" : `, advantage ${run.advantage.toFixed(4)}`)
  return mark
}

// A long context is folded in its middle: what stands before an answer is seen, the rest is one click away.
function contextRun(run) {
  const box = element("span", "context")
  box.title = `${count(run.n)} tokens of context`
  if (run.text.length <= 2 * (CONTEXT_HEAD + CONTEXT_TAIL)) {
    box.append(markedText(run.text))
    return box
  }
  const hidden = run.text.length - CONTEXT_HEAD - CONTEXT_TAIL
  const more = element("button", "more", `${count(hidden)} more characters`)
  more.onclick = () => more.replaceWith(markedText(run.text.slice(CONTEXT_HEAD, -CONTEXT_TAIL)))
  box.append(markedText(run.text.slice(0, CONTEXT_HEAD)), more, markedText(run.text.slice(-CONTEXT_TAIL)))
  return box
}
