// Tables with their columns and meanings, and earlier queries. A click puts the name or the query into the editor.

export default function (component) {
  const { data, parentElement } = component
  const state = stateOf(parentElement, () => ({ mode: "tables", needle: "", open: new Set(data.open), all: null }))
  state.data = data
  state.frame = parentElement.querySelector(".frame")
  if (!state.body) mount(state)
  draw(state)
}

function mount(state) {
  const bar = element("div", "bar")
  const modes = element("div", "seg")
  state.buttons = [["tables", "Tables"], ["history", "History"]].map(([mode, label]) => {
    const button = element("button", "", label)
    button.onclick = () => {
      state.mode = mode
      draw(state)
    }
    modes.append(button)
    return [mode, button]
  })
  state.search = element("input")
  state.search.type = "search"
  state.search.placeholder = "Find"
  state.search.setAttribute("aria-label", "Find a table, column or query")
  state.search.oninput = () => {
    state.needle = state.search.value.trim().toLowerCase()
    draw(state)
  }
  bar.append(modes, state.search)
  state.body = element("div", "body")
  state.body.style.height = `${state.data.height}px`
  state.body.tabIndex = 0
  state.body.setAttribute("role", "region")
  state.body.setAttribute("aria-label", "Tables and earlier queries")
  state.frame.replaceChildren(bar, state.body)
}

function draw(state) {
  for (const [mode, button] of state.buttons) button.setAttribute("aria-pressed", String(mode === state.mode))
  const parts = state.mode === "tables" ? tables(state) : past(state)
  state.body.replaceChildren(...(parts.length ? parts : [element("p", "none faint", nothing(state))]))
}

function nothing(state) {
  if (state.needle) return "No match."
  return "Queries that you run are listed here."
}

function tables(state) {
  const parts = []
  for (const { table, doc, columns } of state.data.tables) {
    const whole = table.toLowerCase().includes(state.needle)
    const shown = columns.filter((one) => whole || `${one.name} ${one.doc}`.toLowerCase().includes(state.needle))
    if (!shown.length) continue
    const box = element("details")
    box.open = state.needle !== "" || state.open.has(table)
    box.ontoggle = () => {
      if (!state.needle) box.open ? state.open.add(table) : state.open.delete(table)
    }
    box.append(element("summary", "", table))
    if (doc) box.append(element("p", "doc faint", doc))
    box.append(item(table, "table", ""))
    for (const one of shown) box.append(item(one.name, one.type.toLowerCase(), one.doc))
    parts.push(box)
  }
  return parts
}

function item(name, kind, doc) {
  const button = element("button", "item")
  button.dataset.name = name
  button.title = `Insert ${name}`
  button.append(element("span", "name", name), element("span", "kind faint", kind))
  if (doc) button.append(element("span", "doc faint", doc))
  button.onclick = () => send({ insert: name })
  return button
}

function past(state) {
  return state.data.history
    .filter((one) => one.text.toLowerCase().includes(state.needle))
    .map((one) => {
      const button = element("button", "item past")
      button.title = "Put into the editor"
      button.append(element("span", "name", one.text), element("span", one.failed ? "bad" : "faint", one.note))
      button.append(element("span", "kind faint", one.at))
      button.onclick = () => send({ replace: one.text })
      return button
    })
}

function send(detail) {
  window.dispatchEvent(new CustomEvent("claw-studio-sql", { detail }))
}
