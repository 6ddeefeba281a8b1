mkdir -p output
{
  echo "# Phase 2: Pilot"
  echo
  python3 - <<'PY'
import json
for line in open("input/sessions/agentA-2026-04-08.jsonl", encoding="utf-8"):
    text = json.loads(line)["message"]["content"]
    if isinstance(text, str) and text.startswith("Phase 2: Pilot"):
        for one in text.splitlines():
            if "(Owner:" in one:
                print("- [ ] " + one.removeprefix("- "))
PY
} > output/nimbus_checklist.md
echo '[{"file": "input/sessions/agentA-2026-04-08.jsonl", "keyword": "Phase 2: Pilot"}]' > output/context_sources.json
