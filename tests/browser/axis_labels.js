// Texts of charts with a contrast below 4.5: axe-core does not read the labels of a drawing.
() => {
  const light = (rgb) => rgb.map((one) => one / 255).map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, place) => sum + one * [0.2126, 0.7152, 0.0722][place], 0);
  const numbers = (colour) => colour.match(/[\d.]+/g).map(Number);
  const ground = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const [r, g, b, alpha = 1] = numbers(getComputedStyle(one).backgroundColor);
      if (alpha === 1) return [r, g, b];
    }
  };
  return [...document.querySelectorAll(".js-plotly-plot :is(.xtick, .ytick, .g-xtitle, .g-ytitle, .annotation, .legend, .colorbar) text")].flatMap((label) => {
    const [one, other] = [light(numbers(getComputedStyle(label).fill).slice(0, 3)), light(ground(label.closest(".js-plotly-plot")))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    return contrast < 4.5 ? [`text of a chart "${label.textContent}" has a contrast of ${contrast.toFixed(1)}`] : [];
  });
}
