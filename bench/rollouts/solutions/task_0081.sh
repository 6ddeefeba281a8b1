mkdir -p output
python3 - <<'PY'
import json
from urllib.parse import quote

made = []
for one in json.load(open("input/spec.json", encoding="utf-8"))["briefs"]:
    text, time, duck = quote(one["query"], safe=""), one.get("time_filter"), one.get("duckduckgo_params", {})
    urls = {
        "id": one["id"],
        "google": f"https://www.google.com/search?q={text}" + (f"&tbs=qdr:{time[0]}" if time else ""),
        "duckduckgo": f"https://duckduckgo.com/html/?q={text}" + "".join(f"&{k}={duck[k]}" for k in ("kp", "kl") if k in duck),
        "brave": f"https://search.brave.com/search?q={text}" + (f"&tf=p{time[0]}" if time else ""),
        "startpage": f"https://www.startpage.com/sp/search?query={text}" + (f"&time={time}" if time else ""),
    }
    if one.get("type") == "compute":
        urls["wolframalpha"] = f"https://www.wolframalpha.com/input?i={text}"
    made.append(urls)
json.dump({"briefs": made}, open("output/search_urls.json", "w", encoding="utf-8"))
with open("output/README.md", "w", encoding="utf-8") as file:
    for one in made:
        file.write(f"- {one['id']}: {', '.join(name for name in one if name != 'id')}\n")
PY
