// A component's functions, out of the very text that the browser gets: the common script in front, then its own.
import { readFileSync } from "node:fs"
import vm from "node:vm"

const FOLDER = new URL("../../studio/components/", import.meta.url)

// Parses "#rrggbb" as a canvas does; colours are no geometry, so this is all that the functions under test ask of a page.
const document = {
  createElement: () => ({ getContext: () => ({ fillStyle: "" }) }),
}

export function load(name, functions, shared = []) {
  const source = ["common.js", ...shared, `${name}.js`].map((file) => readFileSync(new URL(file, FOLDER), "utf-8")).join("\n")
  const context = vm.createContext({ atob, document, performance })
  vm.runInContext(source.replace("export default function", "function mount"), context)
  return vm.runInContext(`({ ${functions.join(", ")} })`, context)
}

// Seeded, so that a failure is the same again (mulberry32).
export function random(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
}

// A random prefix tree, depth first: nodes in columns as the components get them, and each token's path to the root.
export function randomTree(draw, nNodes) {
  const children = [[]]
  for (let i = 1; i < nNodes; i++) {
    children.push([])
    children[Math.floor(draw() * i)].push(i)
  }
  const tree = { start: [], stop: [], end: [], parent: [], owners: [], laneFrom: [], laneTo: [], paths: [] }
  let token = 0
  let lane = 0
  const visit = (node, parent, path) => {
    const at = tree.start.length
    const length = 1 + Math.floor(draw() * 4)
    tree.start.push(token)
    tree.stop.push(token + length)
    tree.parent.push(parent)
    tree.laneFrom.push(lane)
    for (const column of ["end", "laneTo", "owners"]) tree[column].push(0)
    const own = [...path]
    for (let i = 0; i < length; i++) {
      own.push(token++)
      tree.paths.push([...own])
    }
    for (const child of children[node]) visit(child, at, own)
    if (children[node].length === 0) lane += 1
    tree.end[at] = token
    tree.laneTo[at] = lane
    tree.owners[at] = lane - tree.laneFrom[at]
  }
  visit(0, -1, [])
  return { ...tree, nTokens: token, nLanes: lane }
}
