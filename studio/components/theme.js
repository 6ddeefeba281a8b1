// The choice of theme. Streamlit reads it from the browser's storage when a page loads, under a name of its path.

const THEMES = ["System", "Light", "Dark"]

export default function (component) {
  const { data, parentElement } = component
  const frame = parentElement.querySelector(".frame")
  const here = window.location.pathname
  const base = here.endsWith("/" + data.page) ? here.slice(0, -data.page.length) : "/"
  const place = (path) => `stActiveTheme-${path}-v${data.version}`
  const read = () => {
    try {
      const kept = JSON.parse(window.localStorage.getItem(place(here)))
      return THEMES.includes(kept) ? kept : "System"
    } catch {
      return "System"
    }
  }
  const choose = (theme) => {
    for (const page of data.pages) window.localStorage.setItem(place(base + page), JSON.stringify(theme))
    window.location.reload()
  }
  const chosen = read()
  const bar = element("div", "seg themes")
  bar.setAttribute("role", "group")
  bar.setAttribute("aria-label", "Theme")
  for (const theme of THEMES) {
    const button = element("button", "", theme)
    button.setAttribute("aria-pressed", String(theme === chosen))
    button.onclick = () => choose(theme)
    bar.append(button)
  }
  frame.replaceChildren(bar)
}
