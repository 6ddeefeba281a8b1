// Trajectories side by side, a row each, their steps in columns: what equals the reference row, where each parts from
// it, and what it earned.

export default function (component) {
  const { data, parentElement, setTriggerValue } = component
  const frame = parentElement.querySelector(".frame")
  const state = stateOf(parentElement, () => ({ left: 0 }))
  const say = (what, uid) => setTriggerValue("click", { what, uid })
  const body = element("div", "grid body")
  body.style.maxHeight = (data.height ?? 420) + "px"
  body.onscroll = () => (state.left = body.scrollLeft)
  for (const row of data.rows) {
    const line = element("div", "line" + (row.reference ? " reference" : ""))
    const head = element("div", "head")
    const title = element("div", "title")
    const name = element("button", "plain name mono", row.name)
    name.title = row.uid
    name.onclick = () => say("trajectory", row.uid)
    title.append(name)
    if (row.quality) title.append(element("span", "badge q-" + row.quality, row.quality))
    if (!row.complete) title.append(element("span", "badge", "open"))
    const numbers = element("div", "numbers")
    numbers.append(number("reward", row.reward), number("advantage", row.advantage))
    const why = element("div", "faint why", row.why)
    why.title = row.reason
    const end = element("span", "acts")
    if (row.reference) end.append(element("span", "faint", "baseline"))
    else if (data.acts) {
      const refer = element("button", "plain", "set as baseline")
      refer.title = "Compare the other trajectories with this one"
      refer.onclick = () => say("reference", row.uid)
      const compare = element("button", "plain", "compare")
      compare.title = "Side by side with the baseline"
      compare.onclick = () => say("compare", row.uid)
      end.append(refer, compare)
    }
    numbers.append(end)
    head.append(title, numbers)
    if (row.why) head.append(why)
    line.append(head)
    row.cells.forEach((cell, place) => line.append(step(row, cell, place, say)))
    body.append(line)
  }
  const legend = element("div", "legend faint")
  for (const [name, label] of [["same", "same as the baseline"], ["own", "differs"], ["parts", "first difference"]]) {
    legend.append(element("i", name), document.createTextNode(label))
  }
  frame.replaceChildren(body, legend)
  body.scrollLeft = state.left
}

function number(label, value) {
  const node = element("span", "number")
  const text = value === null ? "—" : (value > 0 && label === "advantage" ? "+" : "") + +value.toFixed(3)
  node.append(element("span", "faint", label + " "), element("b", "mono" + (value > 0 ? " up" : value < 0 ? " down" : ""), text))
  return node
}

function step(row, cell, place, say) {
  const parts = row.parts === place
  const same = !row.reference && (row.parts === null || place < row.parts)
  const node = element("button", "cell" + (parts ? " parts" : same ? " same" : row.reference ? "" : " own") + (cell.selected ? " on" : ""))
  node.dataset.step = cell.uid
  const top = element("div", "top")
  top.append(element("b", "mono", String(cell.index)), element("span", "what", cell.what))
  const low = element("div", "low faint mono")
  low.append(document.createTextNode(count(cell.n_tokens)))
  if (cell.reward !== null) low.append(document.createTextNode("  r " + +cell.reward.toFixed(3)))
  node.append(top, low)
  const where = parts && row.token !== null ? `\nDiverges from the baseline at token ${count(row.token)}` : parts ? "\nThe baseline ends before this step" : ""
  node.title = `Step ${cell.index}: ${cell.what}\n${count(cell.n_tokens)} sampled tokens${where}`
  node.onclick = () => say("step", cell.uid)
  return node
}
