// What is wrong with the layout of the page as it is drawn: texts that are cut or stick out, controls that overlap.
() => {
  const CONTROLS = "button, input, textarea, select, a[href], [role=radio], [role=tab], [role=combobox], [role=slider], [role=checkbox]";
  const problems = [];

  const all = [];
  const collect = (root) => {
    for (const element of root.querySelectorAll("*")) {
      all.push(element);
      if (element.shadowRoot) collect(element.shadowRoot);
    }
  };
  collect(document.body);

  const parentOf = (element) => element.parentElement ?? element.getRootNode().host ?? null;
  const name = (element) => {
    const said = (element.getAttribute("aria-label") || element.innerText || element.value || "").trim().slice(0, 60);
    return `${element.tagName.toLowerCase()} "${said.replace(/\s+/g, " ")}"`;
  };
  const styles = new Map();
  const style = (element) => {
    if (!styles.has(element)) styles.set(element, getComputedStyle(element));
    return styles.get(element);
  };
  const shown = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  // Texts for screen readers are a pixel wide.
  const isUnseen = (element) => {
    for (let one = element; one; one = parentOf(one)) {
      const box = one.getBoundingClientRect();
      if (style(one).clipPath !== "none" || (box.width <= 1 && style(one).overflow !== "visible")) return true;
    }
    return false;
  };

  // The part of a rectangle that the element's clipping ancestors leave.
  const seen = (element, rectangle) => {
    let { left, right, top, bottom } = rectangle;
    for (let one = parentOf(element); one; one = parentOf(one)) {
      const box = one.getBoundingClientRect();
      if (style(one).overflowX !== "visible") [left, right] = [Math.max(left, box.left), Math.min(right, box.right)];
      if (style(one).overflowY !== "visible") [top, bottom] = [Math.max(top, box.top), Math.min(bottom, box.bottom)];
    }
    return { left, right, top, bottom };
  };

  const texts = all.filter((element) => !["SCRIPT", "STYLE", "TITLE"].includes(element.tagName) && !element.closest("svg, canvas")
    && [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
  const SMALLEST = 11;
  for (const element of texts) {
    if (!shown(element)) continue;
    const size = parseFloat(style(element).fontSize);
    if (size < SMALLEST && !isUnseen(element)) problems.push(`text of ${size} px: ${name(element)}`);
    const range = document.createRange();
    range.selectNodeContents(element);
    const text = range.getBoundingClientRect();
    if (!text.width || !text.height) continue;
    let ellipsis = false;
    for (let one = element; one && one !== document.body; one = parentOf(one)) {
      const { overflowX, textOverflow } = style(one);
      ellipsis ||= textOverflow === "ellipsis" && overflowX !== "visible";
      const box = one.getBoundingClientRect();
      // A button says all of its label; the chips of filters have a length of their own.
      const isButton = one.closest("[data-testid=stButton], [data-testid=stButtonGroup]") && !one.closest("[class*=-chips]");
      if (ellipsis && isButton && text.right > box.right + 1.5 && !isUnseen(element)) {
        problems.push(`label is shortened: ${name(element)}`);
      }
      if (ellipsis || ["auto", "scroll"].includes(overflowX)) break;
      const sticksOut = text.right > box.right + 1.5 || text.left < box.left - 1.5;
      const isControl = one.matches("button, [role=radio], [role=tab]");
      if (sticksOut && (isControl || ["hidden", "clip"].includes(overflowX)) && !isUnseen(element)) {
        problems.push(`text is cut: ${name(element)} (${Math.round(text.width)} px in ${Math.round(box.width)} px)`);
        break;
      }
    }
    if (!ellipsis && text.right > innerWidth + 1 && seen(element, text).right > innerWidth + 1) {
      problems.push(`text is outside of the window: ${name(element)}`);
    }
  }

  const controls = all.filter((element) => element.matches(CONTROLS) && !element.closest("canvas") && shown(element) && !isUnseen(element))
    .map((element) => ({ element, home: element.closest("[data-testid=stElementContainer]") ?? element.getRootNode().host ?? null,
      box: seen(element, element.getBoundingClientRect()) }))
    .filter(({ box }) => box.right - box.left > 2 && box.bottom - box.top > 2);
  controls.forEach((one, place) => {
    for (const other of controls.slice(place + 1)) {
      // One widget places its own parts.
      if (one.home && one.home === other.home && one.home.matches("[data-testid=stElementContainer]")) continue;
      if (one.element.contains(other.element) || other.element.contains(one.element)) continue;
      const across = Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left);
      const down = Math.min(one.box.bottom, other.box.bottom) - Math.max(one.box.top, other.box.top);
      if (across > 2 && down > 2) problems.push(`controls overlap: ${name(one.element)} and ${name(other.element)}`);
    }
  });

  for (const element of all.filter((one) => one.matches(".cs-fig .l, .cs-fig .v, .cs-fig .s") && shown(one))) {
    const cell = element.closest(".cs-fig"), range = document.createRange();
    range.selectNodeContents(element);
    if (range.getBoundingClientRect().right > cell.getBoundingClientRect().right + 0.5) problems.push(`figure is cut: ${name(element)}`);
  }

  const page = document.querySelector("[data-testid=stMain]");
  if (page && page.scrollWidth > page.clientWidth + 1) problems.push(`the page scrolls sideways: ${page.scrollWidth} px in ${page.clientWidth} px`);
  return [...new Set(problems)];
}
