// Packed rows under the token budget: what fills each row, which step adds which tokens, what is padding.

export default function (component) {
  const { data, parentElement, setTriggerValue } = component
  const frame = parentElement.querySelector(".frame")
  const theme = themeOf(parentElement)
  const body = element("div", "body packed")
  body.style.maxHeight = (data.height ?? 320) + "px"
  const tip = element("div", "tip")
  tip.hidden = true
  const order = new Map()
  for (const row of data.rows) {
    const line = element("button", "line" + (row.index === data.selected ? " on" : ""))
    line.title = `Row ${row.index}: ${row.n_tokens} of ${data.budget} tokens`
    line.dataset.row = row.index
    const name = element("span", "mono faint name", String(row.index))
    const track = element("span", "track")
    row.segments.forEach(([length, label, owner, detail]) => {
      if (!order.has(owner)) order.set(owner, order.size)
      const part = element("i")
      part.style.width = (100 * length) / data.budget + "%"
      if (length / data.budget > 0.004) part.className = "wide"
      part.style.background = ownerColour(order.get(owner), theme)
      part.onmousemove = (event) => {
        tip.replaceChildren(element("div", "", label), element("div", "faint", `${count(length)} tokens of its own · ${detail}`))
        const box = frame.getBoundingClientRect()
        placeTip(tip, frame, event.clientX - box.left, event.clientY - box.top)
      }
      part.onmouseleave = () => (tip.hidden = true)
      track.append(part)
    })
    const share = (100 * row.n_tokens) / data.budget
    line.append(name, track, element("span", "mono faint fill", `${count(row.n_tokens)} · ${share.toFixed(0)} %`))
    line.onclick = () => setTriggerValue("row", row.index)
    body.append(line)
  }
  frame.replaceChildren(body, tip)
}
