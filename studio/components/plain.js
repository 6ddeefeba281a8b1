// A long text as it is, in pieces: a code block of half a million characters would stop the page for seconds.

export default function (component) {
  const { data, parentElement } = component
  const frame = parentElement.querySelector(".frame")
  const state = stateOf(parentElement, () => ({ text: null }))
  if (state.text === data.text) return
  state.text = data.text
  const bar = element("div", "bar")
  const copy = element("button", "", "Copy all")
  copy.onclick = async () => {
    await navigator.clipboard.writeText(data.text)
    copy.textContent = "Copied"
  }
  const save = element("a", "save", "Download")
  save.download = data.name
  save.href = URL.createObjectURL(new Blob([data.text], { type: "application/json" }))
  bar.append(element("span", "faint", data.label), element("span", "grow"), copy, save)
  const body = element("div", "body plain")
  body.tabIndex = 0
  body.setAttribute("role", "region")
  body.setAttribute("aria-label", data.label)
  body.style.maxHeight = (data.height ?? 600) + "px"
  body.append(longText("pre", "", data.text))
  frame.replaceChildren(bar, body)
  return () => URL.revokeObjectURL(save.href)
}
