// Putting a conversation together from what each turn adds, against the conversation that was taken apart.
import assert from "node:assert/strict"
import test from "node:test"

import { load, random } from "./load.mjs"

const { conversation, textOfTurn } = load("transcript", ["conversation", "textOfTurn"], ["cards.js"])

test("the last step's messages come back, whatever has a card and whatever has none", () => {
  const draw = random(7)
  for (let round = 0; round < 300; round++) {
    const lines = []
    const turns = []
    for (let i = 0; i < 1 + Math.floor(draw() * 6); i++) {
      const parent = i && draw() < 0.9 ? Math.floor(draw() * i) : null
      const before = parent === null ? [] : lines[parent]
      const n_shared = Math.floor(draw() * (before.length + 1))
      const added = Array.from({ length: Math.floor(draw() * 4) }, (_, k) => ({ role: "user", content: `${i}.${k}` }))
      const answer = draw() < 0.9 ? { role: "assistant", content: `answer ${i}` } : null
      lines.push([...before.slice(0, n_shared), ...added, ...(answer ? [answer] : [])])
      const entries = []
      const hidden = []
      added.forEach((raw, place) => (draw() < 0.7 ? entries.push({ raw, place }) : hidden.push([place, raw])))
      if (answer) entries.push({ raw: answer, sampled: true })
      turns.push({ parent, n_shared, entries, hidden })
    }
    assert.deepEqual(JSON.parse(JSON.stringify(conversation(turns))), lines[lines.length - 1])
  }
})

test("the search goes over reasoning, texts, calls and results, in the order in which they stand", () => {
  const entry = {
    reasoning: "Why", parts: [{ kind: "text", text: "What" }, { kind: "image", src: null }],
    calls: [{ name: "Read", arguments: '{"a": 1}', result: { parts: [{ kind: "text", text: "OUT" }] } }, { name: null, arguments: "", result: null }],
  }
  assert.equal(textOfTurn({ entries: [entry] }), 'why\nwhat\n\nread\n{"a": 1}\nout\n\n')
})
