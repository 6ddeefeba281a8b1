// A step as a delta: folded history, then one card per message, tool calls with their results beside them.

export default function (component) {
  const { data, parentElement } = component
  const frame = parentElement.querySelector(".frame")
  const state = stateOf(parentElement, () => ({ open: new Set(), uid: null }))
  if (state.uid !== data.uid) state.open = new Set()
  state.uid = data.uid
  frame.replaceChildren()
  paged(frame, data.entries, (entry, index) => render(entry, String(index), state))
  if (!data.entries.length) frame.append(element("div", "none faint", "This step has no messages."))
}
