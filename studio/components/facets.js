// Facets with counts: a click on a value toggles it. Python owns the selection (it lives in the URL).

export default function (component) {
  draw(component)
}

function draw(component) {
  const { data, parentElement, setTriggerValue } = component
  const frame = parentElement.querySelector(".frame")
  const state = stateOf(parentElement, () => ({ closed: new Set(data.closed ?? []), all: new Set() }))
  const list = element("div", "list")
  for (const facet of data.facets) {
    const box = element("details", "facet")
    box.open = !state.closed.has(facet.column) || facet.selected.length > 0
    box.ontoggle = () => (box.open ? state.closed.delete(facet.column) : state.closed.add(facet.column))
    const summary = element("summary")
    summary.append(element("span", "", facet.label))
    if (facet.selected.length) summary.append(element("span", "on", String(facet.selected.length)))
    if (facet.help) summary.title = facet.help
    box.append(summary)
    const most = Math.max(1, ...facet.values.map(([, n]) => n))
    const shown = state.all.has(facet.column) ? facet.values : facet.values.slice(0, 8)
    for (const [value, n] of shown) {
      const on = facet.selected.includes(value)
      const row = element("button", "value" + (on ? " on" : ""))
      row.setAttribute("aria-pressed", String(on))
      row.dataset.facet = facet.column
      row.dataset.value = String(value)
      const name = element("span", "name", value === null ? "none" : String(value))
      if (value === null) name.classList.add("faint")
      row.append(element("i", "tick", on ? "✓" : ""), name, element("span", "n mono", count(n)))
      row.style.setProperty("--share", (100 * n) / most + "%")
      row.title = `${facet.label}: ${value === null ? "none" : value}, ${count(n)} ${data.noun}${facet.hints?.[value] ? "\n" + facet.hints[value] : ""}`
      row.onclick = () => setTriggerValue("toggle", { column: facet.column, value })
      box.append(row)
    }
    if (facet.values.length > shown.length) {
      const more = element("button", "more", `${count(facet.values.length - shown.length)} more`)
      more.onclick = () => {
        state.all.add(facet.column)
        draw(component)
      }
      box.append(more)
    }
    list.append(box)
  }
  frame.replaceChildren(list)
}
