// An SQL editor made of CodeMirror 6: highlighting, completion of tables, columns and functions, undo, brackets.

import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from "@codemirror/autocomplete"
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands"
import { PostgreSQL, SQLDialect, keywordCompletionSource, schemaCompletionSource, sql } from "@codemirror/lang-sql"
import { bracketMatching, syntaxHighlighting, syntaxTree } from "@codemirror/language"
import { EditorState, Prec } from "@codemirror/state"
import { EditorView, keymap, lineNumbers } from "@codemirror/view"
import { classHighlighter } from "@lezer/highlight"

// DuckDB's parser is PostgreSQL's, with these words added.
const MORE_KEYWORDS = " qualify pivot unpivot summarize describe exclude replace semi anti asof positional columns"
const DuckDB = SQLDialect.define({ ...PostgreSQL.spec, keywords: PostgreSQL.spec.keywords + MORE_KEYWORDS })

/**
 * An editor inside `parent`.
 *
 * `tables`: [{table, doc, columns: [{name, type, doc}]}]; `functions`: names; `onRun` is called with the text at
 * Ctrl+Enter. Returns {text(), replace(text), insert(text)}.
 */
export function sqlEditor({ parent, root, text, label, tables, functions, onRun }) {
  const namespace = Object.fromEntries(
    tables.map((one) => [
      one.table,
      { self: { label: one.table, type: "class", info: one.doc }, children: one.columns.map(columnOption) },
    ]),
  )
  const config = { dialect: DuckDB, schema: namespace, upperCaseKeywords: true }
  const view = new EditorView({
    parent,
    root,
    state: EditorState.create({
      doc: text,
      extensions: [
        lineNumbers(),
        history(),
        bracketMatching(),
        closeBrackets(),
        EditorView.lineWrapping,
        EditorView.contentAttributes.of({ "aria-label": label, spellcheck: "false" }),
        sql({ dialect: DuckDB }).language,
        autocompletion({
          icons: false,
          override: [
            schemaCompletionSource(config),
            keywordCompletionSource(DuckDB, true),
            unqualified(tables, functions),
          ],
        }),
        syntaxHighlighting(classHighlighter),
        Prec.highest(keymap.of([{ key: "Mod-Enter", run: () => (onRun(view.state.doc.toString()), true) }])),
        keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...historyKeymap, ...completionKeymap]),
      ],
    }),
  })
  return {
    text: () => view.state.doc.toString(),
    replace(text) {
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text }, selection: { anchor: text.length } })
    },
    insert(text) {
      const { from, to } = view.state.selection.main
      const spaced = from && /\w/.test(view.state.sliceDoc(from - 1, from)) ? ` ${text}` : text
      view.dispatch({ changes: { from, to, insert: spaced }, selection: { anchor: from + spaced.length } })
      view.focus()
    },
  }
}

function columnOption({ name, type, doc }) {
  return { label: name, type: "property", detail: type.toLowerCase(), info: doc || undefined }
}

// Columns of the tables that the query names, without a table before them, and functions. The schema's own source
// completes columns only after `table.`.
function unqualified(tables, functions) {
  const byName = new Map(tables.map((one) => [one.table, one.columns.map(columnOption)]))
  const calls = functions.map((name) => ({ label: name, type: "function", detail: "function", apply: `${name}(`, boost: -1 }))
  return (context) => {
    const word = context.matchBefore(/\w+/)
    if (!word && !context.explicit) return null
    const from = word ? word.from : context.pos
    if (context.state.sliceDoc(from - 1, from) === ".") return null
    if (/String|Comment/.test(syntaxTree(context.state).resolveInner(context.pos, -1).name)) return null
    const named = new Set(context.state.doc.toString().match(/\w+/g))
    const columns = new Map()
    for (const [table, options] of byName) {
      if (named.has(table)) for (const option of options) columns.set(option.label, option)
    }
    return { from, options: [...columns.values(), ...calls], validFor: /^\w*$/ }
  }
}
