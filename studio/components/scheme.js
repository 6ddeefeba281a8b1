// A switch of the theme in an open page runs the page again: colour scales of charts are chosen when a chart is sent.

export default function (component) {
  const { setStateValue } = component
  const app = document.querySelector("[data-testid=stApp]")
  const read = () => getComputedStyle(app).colorScheme
  let known = read()
  // The theme is a class of the element.
  const watch = new MutationObserver(() => {
    const now = read()
    if (now === known) return
    known = now
    setStateValue("scheme", now)
  })
  watch.observe(app, { attributeFilter: ["class"] })
  return () => watch.disconnect()
}
