// The SQL editor with its Run button. The text lives in the browser; Python gets it when it is run.

export default function (component) {
  const { data, parentElement, setTriggerValue } = component
  const frame = parentElement.querySelector(".frame")
  const state = stateOf(parentElement, () => ({ editor: null, given: data.text }))
  state.run = (text) => {
    state.given = text
    setTriggerValue("run", { text, limit: Number(state.limit.value) })
  }
  if (!state.limit) mount(state, frame, parentElement, data)
  else if (data.text !== state.given) {
    // Another query came from outside: a link, an example, the back button. What is being typed stays otherwise.
    state.given = data.text
    state.editor?.replace(data.text)
  }
  state.limit.value = String(data.limit)
  if (state.listener) window.removeEventListener("claw-studio-sql", state.listener)
  state.listener = ({ detail }) => {
    if (detail.insert !== undefined) state.editor?.insert(detail.insert)
    else state.editor?.replace(detail.replace)
  }
  window.addEventListener("claw-studio-sql", state.listener)
  return () => window.removeEventListener("claw-studio-sql", state.listener)
}

function mount(state, frame, root, data) {
  const place = element("div", "editor")
  const bar = element("div", "bar")
  const run = element("button", "run", "Run")
  run.title = "Ctrl+Enter"
  run.onclick = () => state.editor && state.run(state.editor.text())
  state.limit = element("select")
  state.limit.setAttribute("aria-label", "Row limit")
  for (const n of data.limits) {
    const option = element("option", "", `Up to ${count(n)} rows`)
    option.value = String(n)
    state.limit.append(option)
  }
  bar.append(run, state.limit, element("span", "faint", data.note), element("span", "grow"))
  bar.append(element("span", "faint", "Ctrl+Enter runs, Ctrl+Space completes"))
  frame.replaceChildren(place, bar)
  // A module of its own, so that the browser keeps it; scripts of components come with every change of their data.
  const base = window.__streamlit?.BACKEND_BASE_URL ?? `${location.origin}/`
  import(`${base}${data.module}`).then(
    ({ sqlEditor }) => {
      state.editor = sqlEditor({
        parent: place, root, text: state.given, label: "Query", tables: data.tables, functions: data.functions,
        onRun: (text) => state.run(text),
      })
    },
    (error) => place.replaceChildren(element("p", "failed", `The editor could not be loaded: ${error.message}`)),
  )
}
