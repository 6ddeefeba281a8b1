// A click on the open page's entry in the sidebar opens the page without what its address names: a list, not its item.
// Streamlit keeps the parameters then. It reads the address when the browser goes back, which the event repeats.

export default function () {
  const open = (event) => {
    const link = event.target.closest?.("[data-testid=stSidebarNavLink]")
    const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey
    if (!link || !plain || link.pathname !== window.location.pathname || !window.location.search) return
    event.preventDefault()
    event.stopPropagation()
    window.history.pushState(null, "", link.pathname)
    window.dispatchEvent(new PopStateEvent("popstate"))
  }
  window.addEventListener("click", open, true)
  return () => window.removeEventListener("click", open, true)
}
