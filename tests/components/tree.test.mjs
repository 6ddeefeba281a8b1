// The prefix tree's layout and hit-testing against sums along each path and a search of all nodes.
import assert from "node:assert/strict"
import test from "node:test"

import { load, random, randomTree } from "./load.mjs"

const view = load("tree", ["fit", "nodeAt", "place"])
const WIDTHS = { tokens: (n) => n, equal: () => 1, compact: (n) => Math.sqrt(n) }

function stateOf(tree, width) {
  const { start, stop, parent, laneFrom, laneTo } = tree
  const state = { start, stop, parent, laneFrom, laneTo, width, n: start.length, pxWidth: 900, pxHeight: 420, draw: () => {} }
  state.data = { n_lanes: tree.nLanes }
  view.place(state)
  view.fit(state)
  return state
}

for (const [width, of] of Object.entries(WIDTHS)) {
  test(`${width}: a node begins where its parent ends, and is as wide as its tokens say`, () => {
    for (let seed = 0; seed < 40; seed++) {
      const tree = randomTree(random(seed), 1 + (seed % 20))
      const state = stateOf(tree, width)
      let widest = 0
      for (let i = 0; i < state.n; i++) {
        let from = 0
        for (let up = tree.parent[i]; up >= 0; up = tree.parent[up]) from += of(tree.stop[up] - tree.start[up])
        assert.ok(Math.abs(state.x0[i] - from) < 1e-9)
        assert.ok(Math.abs(state.x1[i] - from - of(tree.stop[i] - tree.start[i])) < 1e-9)
        widest = Math.max(widest, state.x1[i])
      }
      assert.ok(Math.abs(state.extent - Math.max(1, widest)) < 1e-9)
    }
  })
}

test("nodes never overlap, so each pixel belongs to one node at most", () => {
  for (let seed = 0; seed < 30; seed++) {
    const state = stateOf(randomTree(random(seed), 2 + (seed % 14)), "tokens")
    for (let a = 0; a < state.n; a++) {
      for (let b = 0; b < a; b++) {
        const across = Math.min(state.x1[a], state.x1[b]) - Math.max(state.x0[a], state.x0[b])
        const down = Math.min(state.laneTo[a], state.laneTo[b]) - Math.max(state.laneFrom[a], state.laneFrom[b])
        assert.ok(across <= 1e-9 || down <= 0, `seed ${seed}: ${a} and ${b}`)
      }
    }
  }
})

test("the middle of a node hits that node after any zoom and pan, and beside the tree nothing is hit", () => {
  const draw = random(21)
  for (let seed = 0; seed < 30; seed++) {
    const state = stateOf(randomTree(random(seed), 1 + (seed % 20)), "compact")
    Object.assign(state, { sx: state.sx * (0.1 + draw() * 30), sy: state.sy * (0.1 + draw() * 5), ox: draw() * 300 - 150, oy: draw() * 300 - 150 })
    for (let i = 0; i < state.n; i++) {
      const x = state.ox + ((state.x0[i] + state.x1[i]) / 2) * state.sx
      const y = state.oy + ((state.laneFrom[i] + state.laneTo[i]) / 2) * state.sy
      assert.equal(view.nodeAt(state, x, y), i)
    }
    assert.equal(view.nodeAt(state, state.ox - 5, state.oy + 1), -1)
    assert.equal(view.nodeAt(state, state.ox + state.extent * state.sx + 5, state.oy + 1), -1)
  }
})

test("fitting shows the whole tree", () => {
  for (let seed = 0; seed < 20; seed++) {
    const tree = randomTree(random(seed), 1 + (seed % 20))
    const state = stateOf(tree, "tokens")
    assert.ok(state.ox >= 0 && state.ox + state.extent * state.sx <= state.pxWidth)
    assert.ok(state.oy >= 0 && state.oy + tree.nLanes * state.sy <= state.pxHeight + 1e-9)
  }
})
