// Finding text in tokens against a search character by character, and typed arrays against Node's own buffers.
import assert from "node:assert/strict"
import test from "node:test"

import { load, random } from "./load.mjs"

const tokens = load("tokens", ["decode", "find", "tokenAt"])

function found(pieces, query) {
  const state = {
    ids: pieces.map((_, i) => i), vocab: new Map(pieces.map((text, i) => [i, { text, special: false }])),
    spelled: new Map(), within: new Map(), data: { n_prompt: 0, n_shared: 0 }, chunks: [], hits: [], hitTokens: new Set(),
  }
  // Scrolling to the hit needs a page; what was found stands in the state before.
  try {
    tokens.find(state, query, {})
  } catch (error) {
    if (!(error instanceof TypeError)) throw error
  }
  return Array.from(state.hits, ([from, to]) => [from, to])
}

test("a text is found over the borders of tokens: the tokens that hold its first and last character", () => {
  const draw = random(2)
  for (let round = 0; round < 400; round++) {
    const pieces = Array.from({ length: 1 + Math.floor(draw() * 12) }, () =>
      Array.from({ length: Math.floor(draw() * 4) }, () => "abA"[Math.floor(draw() * 3)]).join(""))
    const query = Array.from({ length: 1 + Math.floor(draw() * 3) }, () => "ab"[Math.floor(draw() * 2)]).join("")
    const owners = pieces.flatMap((text, i) => [...text].map(() => i))
    const text = pieces.join("").toLowerCase()
    const expected = []
    for (let at = 0; at + query.length <= text.length; ) {
      if (text.slice(at, at + query.length) === query) {
        expected.push([owners[at], owners[at + query.length - 1] + 1])
        at += query.length
      } else at += 1
    }
    assert.deepEqual(found(pieces, query), expected, JSON.stringify([pieces, query]))
  }
})

test("capitals are found by small letters, beside letters that grow when they become small", () => {
  assert.deepEqual(found(["İ ", "ABC"], "abc"), [[1, 2]])
  assert.deepEqual(found(["İ ", "ABC"], "İ"), [[0, 1]])
})

test("#1 finds the id 1 and no text", () => {
  assert.deepEqual(found(["#", "7", "x"], "#1"), [[1, 2]])
})

test("typed arrays come out as they were packed, and null stays null", () => {
  const values = Int32Array.from([0, 1, -1, 2 ** 31 - 1, -(2 ** 31)])
  assert.deepEqual([...tokens.decode(Buffer.from(values.buffer).toString("base64"), Int32Array)], [...values])
  assert.equal(tokens.decode(null, Int32Array), null)
})
