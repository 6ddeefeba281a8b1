// The attention mask's geometry against each token's path to the root, and against plain arithmetic.
import assert from "node:assert/strict"
import test from "node:test"

import { load, random, randomTree } from "./load.mjs"

const mask = load("mask", ["clampView", "nodeAt", "plot", "verdictOf", "zoom", "LEFT", "TOP"])

function stateOf(tree, padding = 0) {
  const { start, stop, end, owners } = tree
  const T = tree.nTokens + padding
  return { start, stop, end, owners, T, width: 800, height: 520, view: { x: 0, y: 0, span: Math.max(T, 12) }, draw: () => {} }
}

test("a key is visible to a query iff it stands on the query's path to the root", () => {
  for (let seed = 0; seed < 60; seed++) {
    const tree = randomTree(random(seed), 1 + (seed % 13))
    const state = stateOf(tree)
    for (let q = 0; q < tree.nTokens; q++) {
      for (let k = 0; k < tree.nTokens; k++) {
        const verdict = mask.verdictOf(state, q, k)
        assert.equal(verdict.startsWith("visible"), tree.paths[q].includes(k), `seed ${seed}, query ${q}, key ${k}: ${verdict}`)
      }
    }
  }
})

test("padding belongs to no node", () => {
  const tree = randomTree(random(3), 5)
  const state = stateOf(tree, 4)
  assert.equal(mask.nodeAt(state, tree.nTokens), -1)
  assert.match(mask.verdictOf(state, tree.nTokens + 1, 0), /^padding/)
})

test("a token's node is the one that a search of all finds", () => {
  for (let seed = 0; seed < 40; seed++) {
    const tree = randomTree(random(seed), 1 + (seed % 17))
    for (let token = 0; token < tree.nTokens; token++) {
      const expected = tree.start.findIndex((s, i) => s <= token && token < tree.stop[i])
      assert.equal(mask.nodeAt(stateOf(tree), token), expected)
    }
  }
})

test("zooming keeps the point under the pointer where it is, until an edge of the row", () => {
  const draw = random(11)
  for (let round = 0; round < 200; round++) {
    const state = { T: 30000, width: 900, height: 600, draw: () => {} }
    const span = 1000 + draw() * 4000
    state.view = { span, x: 8000 + draw() * 8000, y: 8000 + draw() * 8000 }
    const [px, py] = [mask.LEFT + draw() * 400, mask.TOP + draw() * 400]
    const at = () => {
      const { scale } = mask.plot(state)
      return [state.view.x + (px - mask.LEFT) / scale, state.view.y + (py - mask.TOP) / scale]
    }
    const before = at()
    mask.zoom(state, px, py, 0.5 + draw())
    at().forEach((value, i) => assert.ok(Math.abs(value - before[i]) < 1e-6 * 30000))
  }
})

test("the view never leaves the row and never shows fewer than twelve tokens", () => {
  const draw = random(5)
  for (let round = 0; round < 300; round++) {
    const T = 1 + Math.floor(draw() * 50)
    const state = { T, view: { x: (draw() - 0.5) * 400, y: (draw() - 0.5) * 400, span: draw() * 400 } }
    mask.clampView(state)
    const { x, y, span } = state.view
    assert.ok(span >= 12 && span <= Math.max(T, 12))
    for (const from of [x, y]) assert.ok(from >= 0 && (from === 0 || from + span <= T + 1e-9))
  }
})
