// The steps of one trajectory as dense rows: what is shared, new and sampled, how long it took, what it earned.

export default function (component) {
  const { data, parentElement, setTriggerValue } = component
  const frame = parentElement.querySelector(".frame")
  const theme = themeOf(parentElement)
  const state = stateOf(parentElement, () => ({ selected: null }))
  const body = element("div", "rows")
  body.style.maxHeight = (data.height ?? 640) + "px"
  const most = Math.max(1, ...data.steps.map((s) => s.n_prompt_tokens + s.n_response_tokens))
  let current = null
  for (const s of data.steps) {
    const row = element("button", "row" + (s.step_uid === data.selected ? " on" : "") + (s.trainable ? "" : " off"))
    row.setAttribute("aria-current", String(s.step_uid === data.selected))
    row.dataset.step = s.step_uid
    const line = element("div", "line")
    line.append(element("b", "mono index", String(s.step_index)))
    if (s.transition && s.transition !== "extends") line.append(element("span", "badge mark-" + s.transition, s.transition.replace("_", " ")))
    if (s.call_kind && s.call_kind !== "main") line.append(element("span", "badge", s.call_kind))
    if (s.status && s.status !== "ok") line.append(element("span", "badge bad", s.status))
    if (s.quality) line.append(element("span", "badge q-" + s.quality, s.quality))
    line.append(element("span", "what", s.what))
    line.append(element("span", "faint mono latency", s.latency_s === null ? "" : s.latency_s < 10 ? s.latency_s.toFixed(2) + " s" : s.latency_s.toFixed(0) + " s"))
    if (s.reward !== null) line.append(element("span", "mono reward" + (s.reward > 0 ? " up" : s.reward < 0 ? " down" : ""), (s.reward > 0 ? "+" : "") + +s.reward.toFixed(3)))
    const bar = element("div", "tokens")
    const segment = (n, className) => {
      if (n <= 0) return
      const part = element("i", className)
      part.style.width = (100 * n) / most + "%"
      bar.append(part)
    }
    segment(Math.min(s.n_shared_tokens, s.n_prompt_tokens), "shared")
    segment(s.n_prompt_tokens - Math.min(s.n_shared_tokens, s.n_prompt_tokens), "fresh")
    segment(s.n_response_tokens, "sampled")
    row.title =
      `Step ${s.step_index}\n${count(s.n_shared_tokens)} shared + ${count(Math.max(0, s.n_prompt_tokens - s.n_shared_tokens))} new prompt + ` +
      `${count(s.n_response_tokens)} sampled tokens\n${s.finish_reason ? "finished: " + s.finish_reason + "\n" : ""}${s.trainable ? "trainable" : "not trainable"}`
    row.append(line, bar)
    row.onclick = () => setTriggerValue("step", s.step_uid)
    if (s.step_uid === data.selected) current = row
    body.append(row)
  }
  body.onkeydown = (event) => {
    const move = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0
    if (!move) return
    const rows = [...body.children]
    const at = rows.indexOf(parentElement.activeElement ?? document.activeElement)
    rows[Math.max(0, Math.min(rows.length - 1, at + move))]?.focus()
    event.preventDefault()
  }
  const scroll = frame.querySelector(".rows")?.scrollTop ?? 0
  const legend = element("div", "legend faint")
  for (const [name, label] of [["shared", "shared"], ["fresh", "new prompt"], ["sampled", "sampled"]]) {
    legend.append(element("i", name), document.createTextNode(label))
  }
  frame.replaceChildren(body, legend)
  body.scrollTop = scroll
  if (current && state.selected !== data.selected) {
    const top = current.offsetTop - body.offsetTop
    if (top < body.scrollTop || top > body.scrollTop + body.clientHeight - 40) body.scrollTop = top - 80
  }
  state.selected = data.selected
  state.theme = theme
}
